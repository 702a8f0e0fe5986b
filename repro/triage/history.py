"""Whether a release has a failure, from stored observations: seen in it, or between two releases that agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from repro.judge.observed import Cell, cells
from repro.store.reader import read
from repro.store.records import Record
from repro.vocabulary import TRAINS, UNFINISHED, Failure

REFERENCE = Path(__file__).parent.parent / "reference"
"""Results that come with the package: one set of trials in each release."""


@dataclass(frozen=True)
class Seen:
    """One cell in which a symptom was looked for: whether it was seen there."""

    transformers: str
    torch: str
    device: str
    affected: bool
    cell: str


@dataclass(frozen=True)
class Affected:
    """Whether a release has a failure; None where that was not observed. `near` are the cells the answer rests on."""

    answer: bool | None
    because: str
    near: tuple[Seen, ...] = ()


def records(failure: Failure, places: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """Read the stored results about a failure, and say which lines could not be read.

    Raises ResultsError when a place does not exist, or was written by a newer version of this program.
    """
    found: list[Record] = []
    notes: list[str] = []
    for place in places:
        results = read(place, containing=failure.id)
        found.extend(results.records)
        if results.damage:
            notes.append(
                f"{len(results.damage)} lines of {place} are no records and were skipped ({results.damage[0]})"
            )
    return found, notes


def seen(failure: Failure, records: Iterable[Record], outcome: str) -> list[Seen]:
    """Return the cells in which this outcome was looked for and seen, or not seen; the oldest release first.

    The main symptom is looked for in the reported configuration; any other in the configurations that had it anywhere.
    What ended in another way (another error, a crash, a refused argument) says nothing.
    """
    observed = cells(failure, records)
    trials = {failure.trial(failure.reported).id}
    if outcome != failure.symptoms[0].outcome:
        trials = {t for cell in observed for t in cell.observations if _outcome(failure, cell, t) == outcome}
    found = []
    for cell in observed:
        outcomes = {_outcome(failure, cell, trial) for trial in trials} & {outcome, TRAINS}
        if outcomes and _version(cell.transformers):
            found.append(Seen(cell.transformers, cell.torch, cell.device, outcome in outcomes, cell.id))
    return found


def _outcome(failure: Failure, cell: Cell, trial: str) -> str | None:
    finished = {
        failure.outcome(record) for record in cell.observations.get(trial, ()) if record["end"] not in UNFINISHED
    }
    return finished.pop() if len(finished) == 1 else None


def affected(places: list[Seen], transformers: str | None, torch: str | None = None) -> Affected:
    """Tell whether a release has the failure that these cells were observed for."""
    if not places:
        return Affected(None, "no stored results: run `repro matrix`, or name --results")
    if transformers is None:
        return Affected(None, f"the version of transformers is not known. {summary(places)}", tuple(places))
    version = _version(transformers)
    if version is None:
        return Affected(None, f"{transformers!r} is not a version", tuple(places))
    same = [cell for cell in places if Version(cell.transformers).public == version.public]
    if same:
        return _observed(same, torch)
    older = [cell for cell in places if Version(cell.transformers) < version]
    newer = [cell for cell in places if Version(cell.transformers) > version]
    return _between(transformers, older, newer)


def summary(places: list[Seen]) -> str:
    """Say in which observed releases the failure was seen, as runs of neighbouring releases."""
    by_release: dict[str, set[bool]] = {}
    for cell in places:
        by_release.setdefault(cell.transformers, set()).add(cell.affected)
    runs: list[list[str]] = []
    previous = False
    for release, answers in by_release.items():
        has_it = True in answers
        if has_it and previous:
            runs[-1].append(release)
        elif has_it:
            runs.append([release])
        previous = has_it
    releases = list(by_release)
    spans = ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    looked = (
        f"{len(releases)} observed ({releases[0]} to {releases[-1]})" if len(releases) > 1 else f"{releases[0]} only"
    )
    return f"Seen in {spans or 'no release'}, of {looked}"


def _observed(same: list[Seen], torch: str | None) -> Affected:
    wanted = torch.partition("+")[0] if torch else ""
    best = [cell for cell in same if wanted and cell.torch.startswith(wanted)] or same
    answers = {cell.affected for cell in best}
    cell = best[-1]
    where = f"transformers {cell.transformers} with torch {cell.torch} on {cell.device}"
    if len(answers) > 1:
        told = ", ".join(f"torch {c.torch} on {c.device}: {'yes' if c.affected else 'no'}" for c in best)
        return Affected(None, f"observed in transformers {cell.transformers}, and it depends ({told})", tuple(best))
    return Affected(cell.affected, f"observed in {where}", tuple(best))


def _between(version: str, older: list[Seen], newer: list[Seen]) -> Affected:
    if not older or not newer:
        end = older[-1] if older else newer[0]
        had = "has it" if end.affected else "does not have it"
        which = "newest" if older else "oldest"
        return Affected(
            None, f"{version} is outside of what was observed; the {which} observed, {end.transformers}, {had}", (end,)
        )
    below, above = older[-1], newer[0]
    if below.affected == above.affected:
        neighbours = f"{below.transformers} and {above.transformers}"
        because = f"interpolated: {version} itself was not observed, and its neighbours {neighbours} agree"
        return Affected(below.affected, because, (below, above))
    has, has_not = (below, above) if below.affected else (above, below)
    between = f"{has.transformers}, which has it, and {has_not.transformers}, which does not"
    return Affected(None, f"{version} was not observed, and lies between {between}", (below, above))


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
