"""`repro diff`: what changed between two sets of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro.commands import NOT_AS_DECLARED, WRONG_USAGE, JsonOption, Stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("diff")
    def diff_command(
        old: Annotated[Path, typer.Argument(metavar="OLD", help="Results before: a directory, or one file.")],
        new: Annotated[Path, typer.Argument(metavar="NEW", help="Results now.")],
        budgets: Annotated[
            Path | None, typer.Option("--budgets", metavar="FILE", help="Allowed peaks. Default: budgets.toml, if any.")
        ] = None,
        markdown: Annotated[bool, typer.Option("--markdown", help="Write Markdown.")] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Say what changed, by meaning, and what to do about it. Runs nothing.

        Exits with 1 when there is news: anything but that a release is covered now that was not.
        """
        from repro.memory.budgets import DEFAULT_FILE, BudgetFileError
        from repro.nightly import wording
        from repro.nightly.books import open_changes
        from repro.show import terminal

        if markdown and as_json:
            raise Stop("--markdown and --json exclude each other", WRONG_USAGE)
        file = budgets or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
        try:
            found = open_changes(old, new, file)
        except BudgetFileError as error:
            raise Stop(str(error)) from None
        if as_json:
            terminal.print_json(wording.as_json(found))
        else:
            print(wording.markdown(found) if markdown else wording.text(found))
        if any(change.news for change in found):
            raise typer.Exit(NOT_AS_DECLARED)
