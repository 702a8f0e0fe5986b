"""Which releases to look at next, from what was seen so far: pure, and without any belief about where an edge is.

Positions are releases in order. Something seen is a value that can be compared; None stands for a release that cannot
be looked at. The strategy: the two ends first; while all that was seen is alike, halve the widest stretches between
seen releases, until none hides more than a few; as soon as two seen neighbours differ, halve the stretches between
those only, until they are next to each other. Stretches between alike neighbours then stay interpolated.
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
    return sorted(gap.unseen[len(gap.unseen) // 2] for gap in widest)


def _missing_ends(count: int, seen: Seen) -> list[int]:
    """Return the outermost positions that can be looked at and were not."""
    order = range(count)
    usable = [position for position in order if seen.get(position, 0) is not None]
    return sorted({position for position in (*usable[:1], *usable[-1:]) if position not in seen})


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


def interpolated(count: int, seen: Seen) -> Sequence[int]:
    """Return the positions that nobody looked at."""
    return [position for position in range(count) if position not in seen]
