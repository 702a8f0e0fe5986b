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
        jobs: Annotated[
            str, typer.Option(metavar="NAME=RESULT ...", help="How the night's jobs ended, as GitHub says it.")
        ] = "",
        as_json: JsonOption = False,
    ) -> None:
        """Say what the issue should say: what did not run, what changed, what to do. Posts nothing."""
        import json
        import tempfile

        from repro.memory.budgets import DEFAULT_FILE, BudgetFileError
        from repro.nightly import tracking
        from repro.nightly.books import open_changes, open_ledger, peaks_unchecked, still_wrong
        from repro.nightly.ledger import Ledger
        from repro.nightly.plan import PlanError

        ended = [word.rpartition("=") for word in jobs.split()]
        trouble = [f"the job {name} ended with: {end}" for name, _, end in ended if end not in ("success", "skipped")]
        budget_file = DEFAULT_FILE if DEFAULT_FILE.exists() else None
        try:
            with tempfile.TemporaryDirectory(prefix="repro-") as nothing:
                if not old.exists():
                    trouble.append(f"nothing to compare with: there is no {old}. {tracking.COMPARED_AGAIN}")
                changes = open_changes(old if old.exists() else Path(nothing), new, budget_file)
            standing = still_wrong(new, budget_file, changes)
            trouble += filter(None, [peaks_unchecked(new, budget_file)])
        except BudgetFileError as error:
            raise Stop(str(error)) from None
        try:
            ledger = open_ledger(plan, new)
        except PlanError as error:
            ledger = Ledger((), (str(error),))  # a night without a plan is news, and has to be told
        found = tracking.issue(ledger, changes, run, trouble=trouble, standing=standing)
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
        from repro.nightly.github import GitHubError
        from repro.show import terminal

        try:
            found = tracking.read(file)
            with tempfile.TemporaryDirectory(prefix="repro-") as scratch:
                done = tracking.post(found, repository, Path(scratch, "body.md"))
        except (tracking.IssueError, GitHubError) as error:
            raise Stop(str(error)) from None
        terminal.say(f"tracking issue: {done}")

    @group.command("before")
    def fetch_before(
        into: Annotated[Path, typer.Argument(metavar="DIR", help="Where the results go.")],
        repository: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Where the nights ran.")],
        branch: Annotated[str, typer.Option(metavar="NAME", help="Only nights of this branch.")],
        title: Annotated[str, typer.Option(metavar="TEXT", help="Only nights called that.")] = "nightly all",
    ) -> None:
        """Fetch the results of the last night that ended green, with GitHub's `gh`; nothing where none ever did.

        Exits with 3 when they cannot be had, and leaves no directory then, so that nothing is compared with it.
        """
        from repro.nightly.github import GitHubError, fetch_last_green
        from repro.show import terminal

        try:
            number = fetch_last_green(repository, branch, title, into)
        except GitHubError as error:
            raise Stop(str(error)) from None
        terminal.say(f"to compare with: {f'the results of run {number}' if number else 'no night yet'}")
