"""All of a cell's trials: pytest started again without those that killed it, until each has an observation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from repro.cells.cell import Cell, CellError
from repro.matrix.attempt import CRASHED_WORKER, Attempt, Setting, attempt
from repro.store.records import Record, record
from repro.store.writer import ResultsError, Writer
from repro.vocabulary import Trial

AS_DECLARED, SOME_FAILED = 0, 1
REPEATED = ("failure", "trial", "scope", "configuration", "transformers", "torch", "python", "device", "pid")


@dataclass(frozen=True)
class Worked:
    """What came of a cell: pytest's verdict on its outcomes, and whether it was interrupted."""

    as_declared: bool
    interrupted: bool = False


def work(
    cell: Cell,
    trials: Sequence[Trial],
    setting: Setting,
    writer: Writer,
    *,
    stop: Event,
    seen: Callable[[Record], object],
) -> Worked:
    """Run trials in a cell until each was observed; write observations for those that could not write their own.

    Raises CellError when pytest cannot run there, or when the cell's time is up, ResultsError when results cannot be
    written.
    """
    deadline = time.monotonic() + setting.limits.cell_seconds
    left = {trial.id: trial for trial in trials}
    as_declared = True
    while left and not stop.is_set():
        done = attempt(cell, list(left.values()), setting, deadline=deadline, stop=stop, seen=seen)
        if unwritable := re.search(r"cannot write results to [^\n]*", done.output):
            raise ResultsError(unwritable[0])
        for trial, (started, end, detail) in done.unfinished.items():
            observation = unfinished(started, end, detail)
            writer.append(observation)
            seen(observation)
            left.pop(trial, None)
            as_declared = False
        for trial in done.observed:
            left.pop(trial, None)
        as_declared = as_declared and done.code == AS_DECLARED
        if done.stopped == "interrupted":
            return Worked(as_declared, interrupted=True)
        if done.stopped:
            raise CellError("pytest", f"{done.stopped}; {len(left)} trials were not run")
        if not left:
            break
        if not done.observed and not done.unfinished:
            raise CellError("pytest", _last_words(done))
        if done.code in (AS_DECLARED, SOME_FAILED) and CRASHED_WORKER not in done.output:
            raise CellError("pytest", f"{len(left)} trials were asked for and left out: {_last_words(done)}")
    return Worked(as_declared, interrupted=bool(left))


def unfinished(started: Record, end: str, detail: str) -> dict[str, object]:
    """Return the observation of a trial that was started and did not live to write its own."""
    facts = {name: started[name] for name in REPEATED if name in started}
    return record("observation", started["cell"], **facts, end=end, detail=detail, written_by="matrix")


def _last_words(done: Attempt) -> str:
    lines = [line for line in done.output.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("ERROR", "E   ", "INTERNALERROR>", "Error", "ImportError"))]
    return f"pytest ended with exit code {done.code}:\n" + "\n".join((told or lines)[-12:])
