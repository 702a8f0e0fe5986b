"""What a matrix found, told from the stored results: outcomes per cell, and what is not as declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.catalog import failures
from repro.matrix.plan import Chosen
from repro.matrix.run import CellRun
from repro.store.reader import Results, read
from repro.store.records import Record
from repro.vocabulary import UNFINISHED, Level

SKIPPED, COULD_NOT_RUN = "skipped", "could not run"


@dataclass(frozen=True)
class Mismatch:
    """A trial whose outcome is not the declared one, and the command that runs it again."""

    failure: str
    trial: str
    scope: str
    differs_in: Mapping[str, Level]
    expected: str
    observed: str
    detail: str
    rerun: str


@dataclass(frozen=True)
class Summary:
    """One cell's outcomes over the trials that were asked for; `as_declared` counts those the trigger predicted."""

    name: str
    cell: str | None
    transformers: str | None
    torch: str | None
    ran: int
    outcomes: Mapping[str, int] = field(default_factory=dict)
    as_declared: int = 0
    unchecked: int = 0
    could_not_run: int = 0
    missing: int = 0
    mismatches: tuple[Mismatch, ...] = ()
    trouble: str = ""
    interrupted: bool = False


def summarize(
    runs: Sequence[CellRun], chosen: Chosen, results: Path, *, own_interpreter: bool = False
) -> list[Summary]:
    """Summarize the cells of a run from what is stored, earlier observations of theirs included."""
    stored = read(results) if results.exists() else Results((), ())
    latest: dict[tuple[str, str], Record] = {}
    mechanisms: dict[tuple[str, str], Any] = {}
    for record in stored.records:
        if record["kind"] == "observation":
            latest[record["cell"], record["trial"]] = record
        elif record["kind"] == "mechanism":
            mechanisms[record["cell"], record["failure"]] = record["mechanism"]
    return [_summarize(run, chosen, latest, mechanisms, own_interpreter) for run in runs]


def _summarize(
    run: CellRun,
    chosen: Chosen,
    latest: Mapping[tuple[str, str], Record],
    mechanisms: Mapping[tuple[str, str], Any],
    own_interpreter: bool,
) -> Summary:
    name, cell = run.planned.candidate.name, run.cell
    trouble = str(run.trouble) if run.trouble else ""
    if cell is None:
        spec = run.planned.candidate.spec
        version, torch = (spec.transformers, spec.torch) if spec else (None, None)
        return Summary(name, None, version, torch, run.ran, trouble=trouble, interrupted=run.interrupted)
    outcomes: Counter[str] = Counter()
    as_declared = unchecked = missing = 0
    mismatches: list[Mismatch] = []
    where = "" if own_interpreter else f" --environment {cell.python}"
    for trial in chosen.on(str(cell.described["device"])):
        record = latest.get((cell.id, trial.id))
        if record is None:
            missing += 1
            continue
        failure = failures()[trial.failure]
        observed = failure.outcome(record)
        outcomes[observed] += 1
        mechanism = mechanisms.get((cell.id, trial.failure))
        expected = None if mechanism is None else failure.trigger.predict(trial.configuration, trial.scope, mechanism)
        if observed in (SKIPPED, COULD_NOT_RUN) or (expected is None and observed not in UNFINISHED):
            unchecked += 1
        elif observed == expected:
            as_declared += 1
        else:
            error = record.get("exception")
            mismatches.append(
                Mismatch(
                    trial.failure,
                    trial.id,
                    trial.scope,
                    failure.deviations(trial.configuration),
                    expected or "an end",
                    observed,
                    f"{error['type']}: {error['message'][:200]}" if error else str(record.get("detail", "")),
                    f"repro run {trial.failure} --trial {trial.id}{where}",
                )
            )
    return Summary(
        name,
        cell.id,
        cell.transformers,
        str(cell.described["torch"]),
        run.ran,
        dict(outcomes),
        as_declared,
        unchecked,
        outcomes[COULD_NOT_RUN],
        missing,
        tuple(mismatches),
        trouble,
        run.interrupted,
    )


def exit_code(runs: Sequence[CellRun], summaries: Sequence[Summary]) -> int:
    """Return 0, 1 when something is not as declared, else 3 when something could not run; 130 after an interrupt."""
    if any(run.interrupted for run in runs):
        return 130
    if any(summary.mismatches for summary in summaries) or disagreeing(runs, summaries):
        return 1
    if any(summary.trouble or summary.could_not_run or summary.missing for summary in summaries):
        return 3
    return 0


def disagreeing(runs: Sequence[CellRun], summaries: Sequence[Summary]) -> list[str]:
    """Name the cells in which pytest failed although the stored results show nothing wrong: that is not green."""
    return [
        summary.name
        for run, summary in zip(runs, summaries, strict=True)
        if not (run.as_declared or summary.mismatches or summary.could_not_run or summary.missing or summary.trouble)
    ]
