"""How the same trials' peaks differ between releases, and which functions hold the difference. Needs no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from repro.memory import budgets


@dataclass(frozen=True)
class Difference:
    """Trials of one failure whose peaks in one release differ by the same bytes from those in another.

    `phase` is where `release` has these peaks, empty where it was not kept. `places` are the functions that hold more,
    or less, at the peak, and the bytes; together they are the difference. They are empty where no trial of these has a
    complete account.
    """

    failure: str
    device: str
    torch: str
    release: str
    against: str
    phase: str
    bytes: int
    trials: tuple[str, ...]
    places: tuple[tuple[str, int], ...] = ()

    @property
    def explained(self) -> bool:
        """Tell whether the places account for every byte."""
        return sum(held for _, held in self.places) == self.bytes

    @property
    def told(self) -> tuple[tuple[str, int], ...]:
        """Return the places without those pairs of which one holds what the other held: functions are renamed, too."""
        left = list(self.places)
        for place in self.places:
            other = next((rival for rival in left if rival[1] == -place[1]), None)
            if place in left and other:
                left.remove(place)
                left.remove(other)
        return tuple(left)


def differences(observations: Iterable[Mapping[str, Any]], against: str = "") -> list[Difference]:
    """Compare every release with another, the newest observed one unless `against` names one.

    Results are by release, oldest first, and within one the difference that most trials have first.
    """
    by_cell: dict[tuple[str, str, str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for key, record in budgets.peaks(observations).items():
        by_cell[key.failure, key.device, key.torch, key.transformers][key.trial] = record
    found: list[Difference] = []
    for where in sorted(by_cell, key=lambda cell: (*cell[:3], Version(cell[3]))):
        rivals = [cell[3] for cell in by_cell if cell[:3] == where[:3]]
        other = against or max(rivals, key=Version)
        if other != where[3] and other in rivals:
            found += _between(where, by_cell[where], other, by_cell[(*where[:3], other)])
    return found


def _between(
    where: tuple[str, str, str, str],
    mine: Mapping[str, Mapping[str, Any]],
    other: str,
    theirs: Mapping[str, Mapping[str, Any]],
) -> list[Difference]:
    groups: dict[tuple[int, str], list[str]] = defaultdict(list)
    for trial in sorted(mine.keys() & theirs.keys()):
        groups[mine[trial]["peak_bytes"] - theirs[trial]["peak_bytes"], _phase(mine[trial])].append(trial)
    failure, device, torch, release = where
    told = [
        Difference(failure, device, torch, release, other, phase, nbytes, tuple(trials), _places(trials, mine, theirs))
        for (nbytes, phase), trials in groups.items()
    ]
    return sorted(told, key=lambda each: (-len(each.trials), each.bytes, each.phase))


def _phase(record: Mapping[str, Any]) -> str:
    """Name the innermost phase that has the peak."""
    phases: Mapping[str, int] = record.get("phases") or {}
    if not phases:
        return ""
    reached = [name for name, peak in phases.items() if peak == record["peak_bytes"]]
    return next(iter(sorted(reached, key=lambda name: name == "gather")), "between phases")


def _places(
    trials: Iterable[str], mine: Mapping[str, Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[str, int], ...]:
    """Return the places of the first trial that both sides have a complete account of."""
    for trial in trials:
        one, other = (side[trial].get("held") for side in (mine, theirs))
        if one and other:
            moved = {name: one.get(name, 0) - other.get(name, 0) for name in {*one, *other}}
            return tuple(sorted(((n, b) for n, b in moved.items() if b), key=lambda item: (-abs(item[1]), item[0])))
    return ()
