"""What was alive when: the log of a run on fake tensors, its peak and who held it. Pure arithmetic, no torch.

Runs with two batch sizes make the same storages in the same order, and each one's bytes are affine in the batch. So two
logs give the peak at every batch, without another run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

BLOCK = 512
"""Bytes to which CUDA's caching allocator rounds."""

Bytes = Callable[[int], int]
"""The bytes of a block, rounded, by its number."""


def rounded(nbytes: int) -> int:
    """Round a size up as CUDA's caching allocator does."""
    return -(-nbytes // BLOCK) * BLOCK


@dataclass
class Log:
    """One run. Block `i` has `sizes[i]` bytes and is a `kinds[i]`; event `i + 1` is its birth, `-(i + 1)` its end.

    `marks` names moments, as a number of events.
    """

    sizes: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)

    def until(self, mark: str) -> list[int]:
        """Return the events before a mark; after the last one a log runs on, to no purpose."""
        return self.events[: self.marks[mark]]

    def bytes_of(self, block: int) -> int:
        """Return a block's bytes, rounded."""
        return rounded(self.sizes[block])


@dataclass(frozen=True)
class Peak:
    """The most bytes alive in a stretch of a log, and what they were, by kind."""

    peak_bytes: int
    start_bytes: int
    by_kind: dict[str, int]


def peak(log: Log, start: str, end: str, bytes_of: Bytes | None = None) -> Peak:
    """Find the peak between two marks, with the bytes of the run itself or with others."""
    sizes = bytes_of or log.bytes_of
    first, last = log.marks[start], log.marks[end]
    live = start_live = top = at = 0
    for number, event in enumerate(log.events[:last], 1):
        live += sizes(event - 1) if event > 0 else -sizes(-event - 1)
        if number == first:
            start_live = top = live
            at = number
        elif number > first and live > top:
            top, at = live, number
    alive = set[int]()
    for event in log.events[:at]:
        if event > 0:
            alive.add(event - 1)
        else:
            alive.discard(-event - 1)
    by_kind: dict[str, int] = {}
    for block in alive:
        by_kind[log.kinds[block]] = by_kind.get(log.kinds[block], 0) + sizes(block)
    return Peak(top, start_live, by_kind)


def scaled(small: Log, small_batch: int, large: Log, large_batch: int, batch: int) -> Bytes | None:
    """Return the bytes of each block at another batch size, or None when the two runs are not the same run.

    They are not when a batch of one takes another way through the model than a larger one.
    """
    if small_batch == large_batch or small.until("end") != large.until("end"):
        return None
    step, offset = large_batch - small_batch, batch - small_batch

    def bytes_of(block: int) -> int:
        low, high = small.sizes[block], large.sizes[block]
        return rounded(max(0, low + (high - low) * offset // step))

    return bytes_of


def largest(fits: Callable[[int], bool], most: int = 1 << 14) -> int:
    """Return the largest number from 1 to `most` that fits, 0 for none; what fits is assumed to fit smaller, too."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return min(low, most)
