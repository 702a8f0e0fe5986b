"""Which releases to look at next, from what was seen so far: pure, and without any belief about where an edge is.

Positions are releases in order. Something seen is a value that can be compared; None stands for a release that cannot
be looked at. The strategy: the two ends first, or what is nearest to them and can be looked at; while all that was seen
is alike, halve the widest stretches between seen releases, until none hides more than a few; as soon as two seen
neighbours differ, halve the stretches between those only, until they are next to each other. Stretches between alike
neighbours then stay interpolated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Seen = Mapping[int, Any]
Same = Callable[[Any, Any], bool]

RESOLUTION = 8
"""Without any difference found, the search ends when fewer releases than this lie between seen neighbours."""


@dataclass(frozen=True)
class Gap:
    """Two seen positions with nothing seen in between. `unseen` can be looked at, `unusable` cannot."""

    left: int
    right: int
    unseen: tuple[int, ...]
    unusable: tuple[int, ...]
    differs: bool


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def gaps(seen: Seen, *, same: Same = _equal) -> list[Gap]:
    """Return the stretches between seen positions, in order; those without anything in between included."""
    usable = sorted(position for position, value in seen.items() if value is not None)
    found = []
    for left, right in itertools.pairwise(usable):
        between = range(left + 1, right)
        unseen = tuple(position for position in between if position not in seen)
        unusable = tuple(position for position in between if position in seen)
        found.append(Gap(left, right, unseen, unusable, not same(seen[left], seen[right])))
    return found


def next_probes(
    count: int,
    seen: Seen,
    *,
    at_a_time: int = 2,
    resolution: int = RESOLUTION,
    exhaustive: bool = False,
    same: Same = _equal,
) -> list[int]:
    """Return up to `at_a_time` positions out of `count` to look at next; none when the search is over."""
    unseen = [position for position in range(count) if position not in seen]
    if exhaustive:
        return unseen[:at_a_time]
    ends = _missing_ends(count, seen)
    if ends:
        return ends[:at_a_time]
    between = gaps(seen, same=same)
    edges = [gap for gap in between if gap.differs]
    if edges:
        wanted = [gap for gap in edges if gap.unseen]
    else:
        wanted = [gap for gap in between if len(gap.unseen) >= resolution]
    widest = sorted(wanted, key=lambda gap: (-len(gap.unseen), gap.left))[:at_a_time]
    return sorted(_middle(gap) for gap in widest)


def _middle(gap: Gap) -> int:
    """Return the middle of a gap; beside a release that cannot be run, the middle of the longest run of untried ones.

    Releases that cannot be run rarely come alone, and trying them one after the other would be slow.
    """
    middle = gap.unseen[len(gap.unseen) // 2]
    if not {middle - 1, middle + 1} & set(gap.unusable):
        return middle
    runs: list[list[int]] = []
    for position in gap.unseen:
        if runs and runs[-1][-1] == position - 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    longest = max(runs, key=len)
    return longest[len(longest) // 2]


def _missing_ends(count: int, seen: Seen) -> list[int]:
    """Return what to look at so that the outermost releases that can be looked at are seen."""
    wanted = {_missing_end(inward, seen) for inward in (range(count), range(count - 1, -1, -1))}
    return sorted(position for position in wanted if position is not None)


def _missing_end(inward: Sequence[int], seen: Seen) -> int | None:
    """Gallop from an end over releases that cannot be looked at, and halve the way back; None when that is done.

    Old releases that no longer install are many and neighbours: one by one, each would cost a cell.
    """
    usable = next((n for n, position in enumerate(inward) if seen.get(position) is not None), None)
    if usable is None:
        leaps = [inward[2**n - 1] for n in range(len(inward).bit_length()) if 2**n <= len(inward)]
        unseen = [position for position in inward if position not in seen]
        return next((leap for leap in leaps if leap not in seen), unseen[0] if 0 < len(unseen) < RESOLUTION else None)
    tried = [n for n, position in enumerate(inward[:usable]) if position in seen]
    if usable and not tried:
        return inward[0]
    between = [position for position in inward[tried[-1] + 1 if tried else 0 : usable] if position not in seen]
    return between[len(between) // 2] if between else None


@dataclass(frozen=True)
class Stretch:
    """Neighbouring positions of one value, as far as seen: `first` and `last` were looked at themselves."""

    first: int
    last: int
    value: Any


def stretches(seen: Seen, *, same: Same = _equal) -> list[Stretch]:
    """Return the stretches of seen positions that are alike, in order."""
    found: list[Stretch] = []
    for position in sorted(position for position, value in seen.items() if value is not None):
        if found and same(seen[found[-1].last], seen[position]):
            found[-1] = Stretch(found[-1].first, position, found[-1].value)
        else:
            found.append(Stretch(position, position, seen[position]))
    return found


def interpolated(seen: Seen) -> list[int]:
    """Return the positions between seen ones that nobody looked at."""
    return [position for gap in gaps(seen) for position in gap.unseen]
