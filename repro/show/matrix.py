"""A matrix as a person reads it: the plan, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.show import terminal

if TYPE_CHECKING:
    from repro.matrix.plan import Cost
    from repro.matrix.summary import Summary

SHOWN_MISMATCHES = 10


def print_plan(rows: Sequence[dict[str, Any]], cost: Cost, jobs: int, workers: int) -> None:
    """Print what would be run."""
    from rich.table import Table

    view = Table("cell", "transformers", "torch", "python", "as of", "state", box=None, pad_edge=False)
    view.add_column("trials", justify="right")
    view.add_column("already observed", justify="right")
    for row in rows:
        texts = [str(row[key] or "-") for key in ("name", "transformers", "torch", "python", "exclude_newer", "state")]
        view.add_row(*texts, str(row["trials"]), str(row["observed"]))
    terminal.out().print(view)
    for row in rows:
        if row["trouble"]:
            terminal.say(f"{row['name']}: {row['trouble']}")
    trials = sum(row["trials"] for row in rows)
    new = sum(row["state"] == "to build" for row in rows)
    terminal.say(
        f"{terminal.counted(trials, 'trial')} in {terminal.counted(len(rows), 'cell')}, {jobs} at a time with "
        f"{terminal.counted(workers, 'worker')} each: about {duration(cost.seconds)}. "
        f"{terminal.counted(new, 'cell')} to build: about {cost.bytes / 2**30:.1f} GiB of disk, downloads not counted."
    )


def print_summaries(summaries: Sequence[Summary], results: Path) -> None:
    """Print what was found, what is not as declared, what could not run, and where the results are."""
    from rich.table import Table

    outcomes = list(dict.fromkeys(outcome for summary in summaries for outcome in summary.outcomes))
    view = Table("cell", "torch", box=None, pad_edge=False)
    for heading in (*outcomes, "as declared", "not as declared", "run now"):
        view.add_column(heading, justify="right")
    for summary in summaries:
        if summary.cell is not None:
            counts = [str(summary.outcomes.get(outcome, 0) or "-") for outcome in outcomes]
            declared = (summary.as_declared, len(summary.mismatches), summary.ran)
            view.add_row(summary.name, summary.torch, *counts, *map(str, declared))
    if view.row_count:
        terminal.out().print(view)
    for summary in summaries:
        _print_mismatches(summary)
    for summary in summaries:
        if summary.trouble:
            terminal.say(f"{summary.name} could not run: {summary.trouble}")
        if summary.could_not_run:
            terminal.say(
                f"{summary.name}: {summary.could_not_run} trials could not be run; they are taken again next time"
            )
    terminal.say(f"results: {results}")


def _print_mismatches(summary: Summary) -> None:
    if not summary.mismatches:
        return
    print(f"\n{len(summary.mismatches)} not as declared in {summary.name}:")
    for mismatch in summary.mismatches[:SHOWN_MISMATCHES]:
        levels = ", ".join(f"{name}={level}" for name, level in mismatch.differs_in.items()) or "the plain run"
        print(f"  {mismatch.scope}: {levels}\n    expected {mismatch.expected}, observed {mismatch.observed}")
        if mismatch.detail:
            print(f"    {mismatch.detail}")
        print(f"    {mismatch.rerun}")
    if len(summary.mismatches) > SHOWN_MISMATCHES:
        print(f"  ... and {len(summary.mismatches) - SHOWN_MISMATCHES} more (--json lists all)")


def duration(seconds: float) -> str:
    """Return a time as a person says it."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
