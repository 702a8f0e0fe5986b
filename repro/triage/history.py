"""Whether a release has a failure, from stored observations: seen in it, or between two releases that agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from repro.store.reader import read
from repro.store.records import Record
from repro.vocabulary import TRAINS, Failure

REFERENCE = Path(__file__).parent.parent / "reference"
"""Results that come with the package: one set of trials in each release."""


@dataclass(frozen=True)
class Seen:
    """The reported configuration in one cell: whether it failed there."""

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


def records(failure: Failure, places: Sequence[Path]) -> list[Record]:
    """Read the stored results about a failure. The package's own reference may lack; a place that was named may not.

    Raises ResultsError when a named place does not exist, or was written by a newer version of this program.
    """
    found: list[Record] = []
    for place in places:
        if place == REFERENCE and not place.is_dir():
            continue
        found.extend(read(place, containing=failure.id).records)
    return found


def seen(failure: Failure, records: Iterable[Record]) -> list[Seen]:
    """Return the cells in which the reported configuration was seen to its end, oldest release first.

    Whatever ended in another way (another error, a crash, a refused argument) says nothing about this failure.
    """
    reported = failure.trial(failure.reported).id
    ours = {symptom.outcome for symptom in failure.symptoms}
    cells: dict[tuple[str, str, str], Seen] = {}
    for record in records:
        if record["kind"] != "observation" or record.get("trial") != reported or not _version(record["transformers"]):
            continue
        outcome = failure.outcome(record)
        if outcome in ours or outcome == TRAINS:
            key = (record["transformers"], record["torch"], record["device"])
            cells[key] = Seen(*key, affected=outcome in ours, cell=record["cell"])
    return sorted(cells.values(), key=lambda cell: (Version(cell.transformers), cell.torch, cell.device))


def affected(cells: list[Seen], transformers: str | None, torch: str | None = None) -> Affected:
    """Tell whether a release has the failure that these cells were observed for."""
    if not cells:
        return Affected(None, "no stored results: run `repro matrix`, or name --results")
    if transformers is None:
        return Affected(None, f"the version of transformers is not known. {summary(cells)}", tuple(cells))
    version = _version(transformers)
    if version is None:
        return Affected(None, f"{transformers!r} is not a version", tuple(cells))
    same = [cell for cell in cells if Version(cell.transformers).public == version.public]
    if same:
        return _observed(same, torch)
    older = [cell for cell in cells if Version(cell.transformers) < version]
    newer = [cell for cell in cells if Version(cell.transformers) > version]
    return _between(transformers, older, newer)


def summary(cells: list[Seen]) -> str:
    """Say in which observed releases the failure was seen, as runs of neighbouring releases."""
    by_release: dict[str, set[bool]] = {}
    for cell in cells:
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
    looked = f"{len(releases)} observed ({releases[0]} to {releases[-1]})" if len(releases) > 1 else f"{releases[0]} only"
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
        return Affected(None, f"{version} is outside of what was observed; the {which} observed, {end.transformers}, {had}", (end,))
    below, above = older[-1], newer[0]
    if below.affected == above.affected:
        because = f"interpolated: {version} itself was not observed, and its neighbours {below.transformers} and {above.transformers} agree"
        return Affected(below.affected, because, (below, above))
    with_it, without = (below, above) if below.affected else (above, below)
    because = f"{version} was not observed, and lies between {with_it.transformers}, which has it, and {without.transformers}, which does not"
    return Affected(None, because, (below, above))


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
