"""Memory as a person reads it after a run: over time, and what each piece of advice changes; as text and as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repro.judge.observed import Cell, cells
from repro.judge.verdicts import verdicts
from repro.memory.report import Report, from_facts
from repro.show import pictures, terminal
from repro.show.pictures import Bar
from repro.store.records import Record
from repro.vocabulary import Failure

PICTURES = "pictures"
"""Directory of the files, beside the results."""


def print_memory(failure: Failure, records: Sequence[Record], results: Path) -> list[Path]:
    """Show the reported run's memory in the newest cell that metered it, and write the pictures; return their paths.

    Nothing is shown of a failure that is not about memory, or of results without their timelines.
    """
    cell = next((cell for cell in reversed(cells(failure, records)) if _report(failure, cell)), None)
    report = _report(failure, cell) if cell else None
    if cell is None or report is None:
        return []
    title = f"{failure.id}, the reported run, transformers {cell.transformers}"
    capacity = cell.outcome_of(failure, failure.reported).facts.get("capacity")
    bars = list(_bars(failure, cell, records))
    out = terminal.out()
    out.print(f"\n{title}: memory over the run", markup=False)
    out.print(pictures.timeline_text(report), markup=False)
    out.print(f"what it is made of: repro explain {failure.id}", markup=False)
    out.print("\nwhat each piece of advice changes: the highest peak of the run where there is room", markup=False)
    out.print(pictures.bars_text(bars, capacity=capacity), markup=False)
    try:
        there = results / PICTURES
        drawn = pictures.draw_timeline(report, there / f"{failure.id}-run", title=title)
        drawn += pictures.draw_bars(bars, there / f"{failure.id}-advice", capacity=capacity, title=failure.id)
    except (pictures.PicturesUnavailableError, OSError) as error:
        terminal.say(f"no picture files: {error}")
        return []
    out.print(f"pictures: {', '.join(map(str, drawn))}", markup=False)
    return drawn


def _report(failure: Failure, cell: Cell) -> Report | None:
    facts: Any = cell.outcome_of(failure, failure.reported).facts.get("memory") or {}
    return from_facts(facts) if facts.get("timeline") else None


def _bars(failure: Failure, cell: Cell, records: Sequence[Record]) -> Iterator[Bar]:
    reported = cell.outcome_of(failure, failure.reported)
    before = int(reported.facts["peak_bytes"])
    yield Bar("as reported", before, str(reported.name))
    for row in verdicts(failure, [record for record in records if record["cell"] == cell.id]):
        if row["peak_after"] and row["verdict"]:
            spelled = "" if row["spelling"] == "as written" else f" ({row['spelling']})"
            change = f"{row['peak_after'] - row['peak_before']:+,} bytes" if row["peak_before"] else ""
            yield Bar(f"{row['claim']}{spelled}", row["peak_after"], f"{row['verdict']}, {change}".rstrip(", "))
