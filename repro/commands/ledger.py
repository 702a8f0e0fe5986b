"""`repro ledger`: what became of everything that was planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro.commands import (
    COULD_NOT_RUN,
    DEFAULT_RESULTS,
    NOT_AS_DECLARED,
    WRONG_USAGE,
    JsonOption,
    ResultsOption,
    Stop,
)

if TYPE_CHECKING:
    from repro.nightly.ledger import Ledger

PlanOption = Annotated[Path, typer.Option("--plan", metavar="FILE", help="What `repro plan --json` wrote.")]
PLAN = Path("plan.json")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("ledger")
    def ledger_command(
        plan: PlanOption = PLAN,
        results: ResultsOption = DEFAULT_RESULTS,
        markdown: Annotated[bool, typer.Option("--markdown", help="Write a table for a job's summary.")] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Account for every planned trial: observed, skipped with a declared reason, or not, and why. Runs nothing.

        Exits with 1 when anything is missing, crashed, timed out or went over its memory limit, or a cell has no
        observation at all; with 3 when cells could not be built or trials could not run, and nothing worse.
        """
        from repro.nightly.books import open_ledger
        from repro.nightly.plan import PlanError
        from repro.nightly.wording import ledger_as_json, ledger_markdown
        from repro.show import terminal

        try:
            found = open_ledger(plan, results)
        except PlanError as error:
            raise Stop(str(error), WRONG_USAGE) from None
        if as_json:
            terminal.print_json(ledger_as_json(found))
        elif markdown:
            print(ledger_markdown(found))
        else:
            _print(found)
        if not found.green:
            what = "; ".join((*found.trouble, *(f"{count} {state}" for state, count in found.counts.items())))
            raise Stop(f"not all that was planned ran: {what}", COULD_NOT_RUN if found.only_unable else NOT_AS_DECLARED)


def _print(found: Ledger) -> None:
    from rich.table import Table

    from repro.show import terminal

    states = list(found.counts)
    view = Table("cell", *states, "trouble", box=None, pad_edge=False)
    for line in found.lines:
        counts = [str(line.counts.get(state, "-")) for state in states]
        view.add_row(line.name, *counts, "; ".join(line.trouble).partition("\n")[0] or line.skipped or "none")
    if found.lines:
        terminal.out().print(view, markup=False)
    for cell in found.unplanned:
        terminal.say(f"not planned, and left out: {cell}")
