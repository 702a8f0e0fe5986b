"""What a meter saw, as plain data. Standard library only: the desk reads and draws it, a cell makes it.

Time is counted in events, an event being one allocation or one release, so that the same run gives the same report. All
bytes are above the baseline, which is what the device held when the meter was opened.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

BUCKETS = 480
"""Points of a timeline: as many as a picture of usual width can tell apart."""
HOLDERS = 8
"""Places listed as largest holders."""


class Event(NamedTuple):
    """One allocation (bytes positive) or release (negative) of a block. Site 0 is `not recorded`."""

    block: int
    bytes: int
    site: int


class Span(NamedTuple):
    """A phase as the meter saw it pass: events `start` up to `end`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Phase:
    """One passage of a phase: from event `start` up to event `end`, and the most that was live meanwhile."""

    name: str
    start: int
    end: int
    start_bytes: int
    end_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Point:
    """The most bytes live in a stretch of events that begins at `event`."""

    event: int
    bytes: int


@dataclass(frozen=True)
class Holder:
    """What one place of the code held at the peak: so many blocks, so many bytes in all."""

    bytes: int
    blocks: int
    made_at: str


@dataclass(frozen=True)
class Refusal:
    """An allocation past the capacity: what was asked for, what was live, and at which event."""

    wanted: int
    live: int
    capacity: int
    event: int


@dataclass(frozen=True)
class Report:
    """The outcome of one metered run.

    `complete` is False when the run had more events than a log holds: the peak and what is live are exact even then,
    but the timeline, the phases' peaks and the holders cover only the events that were logged.
    """

    device: str
    source: str
    capacity: int | None
    granularity: int
    peak_bytes: int
    live_bytes: int
    events: int
    timeline: tuple[Point, ...]
    phases: tuple[Phase, ...]
    holders: tuple[Holder, ...]
    refusals: tuple[Refusal, ...] = ()
    complete: bool = True
    hardware: str = ""

    def peak_of(self, phase: str) -> int:
        """Return the highest peak of a phase. Raises LookupError for a phase that never happened.

        A phase that never happened has no peak of zero: a run without an evaluation must not look like a cheap one.
        """
        peaks = [each.peak_bytes for each in self.phases if each.name == phase]
        if not peaks:
            seen = ", ".join(sorted({each.name for each in self.phases})) or "none"
            raise LookupError(f"phase {phase!r} never happened in this run; phases seen: {seen}")
        return max(peaks)

    def held(self) -> dict[str, int]:
        """Return the bytes held at the peak by the function that made them, the most first.

        Names are without line numbers, so that releases can be compared. They are all only from a `whole` meter.
        """
        found: dict[str, int] = {}
        for holder in self.holders:
            name = _function(holder.made_at)
            found[name] = found.get(name, 0) + holder.bytes
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def as_facts(self) -> dict[str, Any]:
        """Return the report as JSON values, to be stored with an observation."""
        facts = asdict(self)
        facts["timeline"] = [[point.event, point.bytes] for point in self.timeline]
        return facts


def _function(made_at: str) -> str:
    """Return the innermost of some lines of code, as `file function`; what is no line of code as it is."""
    place = made_at.partition(" < ")[0].partition(" [")[0]
    return re.sub(r":\d+ ", " ", place, count=1)


def from_facts(facts: Mapping[str, Any]) -> Report:
    """Rebuild a report from `as_facts`. Fields that a newer version added are ignored."""
    known = {name: facts[name] for name in Report.__dataclass_fields__ if name in facts}
    known["timeline"] = tuple(Point(*pair) for pair in facts["timeline"])
    known["phases"] = tuple(Phase(**each) for each in facts["phases"])
    known["holders"] = tuple(Holder(**each) for each in facts["holders"])
    known["refusals"] = tuple(Refusal(**each) for each in facts.get("refusals", ()))
    return Report(**known)


def lives(events: Iterable[Event]) -> list[int]:
    """Return the bytes live before the first event and after each event."""
    return list(itertools.accumulate((event.bytes for event in events), initial=0))


def timeline(live: Sequence[int], buckets: int = BUCKETS) -> tuple[Point, ...]:
    """Condense a run to at most so many points, each the maximum of its stretch, so that no peak is lost."""
    width = max(1, -(-len(live) // buckets))
    return tuple(Point(start, max(live[start : start + width])) for start in range(0, len(live), width))


def phases(live: Sequence[int], spans: Iterable[Span]) -> tuple[Phase, ...]:
    """Give each phase its peak. Spans past the end of the log are cut to it."""
    last = len(live) - 1
    cut = ((span.name, min(span.start, last), min(span.end, last)) for span in spans)
    return tuple(
        Phase(name, start, end, live[start], live[end], max(live[start : end + 1])) for name, start, end in cut
    )


def holders(
    events: Sequence[Event],
    sites: Mapping[int, str],
    at: int,
    spans: Sequence[Span] = (),
    most: int | None = HOLDERS,
) -> tuple[Holder, ...]:
    """List who holds what after the first `at` events, by place, largest first; all of them where `most` is None.

    Blocks too small to have been traced are listed together by the phase in which they were made.
    """
    alive: dict[int, tuple[int, int, int]] = {}
    for index, event in enumerate(events[:at]):
        if event.bytes > 0:
            alive[event.block] = (event.bytes, event.site, index)
        else:
            alive.pop(event.block, None)
    innermost = _Innermost(spans)
    by_place: dict[str, list[int]] = {}
    for nbytes, site, index in alive.values():
        place = sites.get(site) or f"small blocks, made in: {innermost.at(index)}"
        by_place.setdefault(place, []).append(nbytes)
    found = [Holder(sum(sizes), len(sizes), place) for place, sizes in by_place.items()]
    return tuple(sorted(found, key=lambda holder: (-holder.bytes, holder.made_at))[:most])


class _Innermost:
    """Finds the innermost phase at an event."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.start, -span.end))
        self._starts = [span.start for span in self._spans]

    def at(self, event: int) -> str:
        for index in range(bisect.bisect_right(self._starts, event) - 1, -1, -1):
            if self._spans[index].end > event:
                return self._spans[index].name
        return "no phase"
