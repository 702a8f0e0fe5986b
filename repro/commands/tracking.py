"""`repro tracking`: the one issue that tells what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro.commands import JsonOption, Stop
from repro.commands.ledger import PLAN, PlanOption


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="tracking", help="Keep the one tracking issue: say what it should say, and post it.")

    @group.command("write")
    def write_issue(
        old: Annotated[Path, typer.Argument(metavar="OLD", help="Results of the last night without news.")],
        new: Annotated[Path, typer.Argument(metavar="NEW", help="Results of this night.")],
        plan: PlanOption = PLAN,
        run: Annotated[str, typer.Option(metavar="URL", help="Where the night can be looked at.")] = "",
        file: Annotated[
            Path | None, typer.Option("--file", metavar="FILE", help="Keep it there, for `repro tracking post`.")
        ] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Say what the issue should say: what did not run, what changed, what to do. Posts nothing."""
        import json

        from repro.memory.budgets import DEFAULT_FILE, BudgetFileError
        from repro.nightly import tracking
        from repro.nightly.books import open_changes, open_ledger
        from repro.nightly.ledger import Ledger
        from repro.nightly.plan import PlanError

        try:
            changes = open_changes(old, new, DEFAULT_FILE if DEFAULT_FILE.exists() else None)
        except BudgetFileError as error:
            raise Stop(str(error)) from None
        try:
            ledger = open_ledger(plan, new)
        except PlanError as error:
            ledger = Ledger((), (str(error),))  # a night without a plan is news, and has to be told
        found = tracking.issue(ledger, changes, run)
        if file:
            tracking.write(found, file)
        print(json.dumps({"news": found.news, "title": found.title, "body": found.body}) if as_json else found.body)

    @group.command("post")
    def post_issue(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="What `repro tracking write` kept.")],
        repository: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Where the issue is.")],
    ) -> None:
        """Open, update or close the issue, with GitHub's `gh`, which has to be logged in."""
        import tempfile

        from repro.nightly import tracking
        from repro.show import terminal

        try:
            found = tracking.read(file)
            with tempfile.TemporaryDirectory(prefix="repro-") as scratch:
                done = tracking.post(found, repository, Path(scratch, "body.md"))
        except tracking.IssueError as error:
            raise Stop(str(error)) from None
        terminal.say(f"tracking issue: {done}")
