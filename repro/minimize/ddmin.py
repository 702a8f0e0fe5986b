"""Delta debugging: the smallest subset of some changes that still fails, in few tests. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Fails = Callable[[tuple[T, ...]], bool]
"""Tells whether a subset still fails. One that cannot be tested does not."""


def ddmin(changes: Sequence[T], fails: Fails[T]) -> tuple[T, ...]:
    """Return a subset that fails and of which no single change can be left out: a 1-minimal one.

    The whole has to fail. Tries parts first and then what is left without a part, in ever smaller parts, so that a
    small cause among many changes is found in a logarithmic number of tests. No subset is tested twice.
    """
    known: dict[tuple[T, ...], bool] = {tuple(changes): True}

    def still(subset: tuple[T, ...]) -> bool:
        if subset not in known:
            known[subset] = fails(subset)
        return known[subset]

    if still(()):
        return ()
    left, parts = tuple(changes), 2
    while len(left) > 1:
        split = list(_parts(left, parts))
        smaller = next((part for part in split if still(part)), None)
        if smaller is not None:
            left, parts = smaller, 2
            continue
        rest = next((r for part in split if still(r := tuple(c for c in left if c not in part))), None)
        if rest is not None:
            left, parts = rest, max(parts - 1, 2)
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
    return left


def _parts(changes: tuple[T, ...], count: int) -> Iterator[tuple[T, ...]]:
    """Split into some parts of about the same size, in order, none of them empty."""
    count = min(count, len(changes))
    bounds = [len(changes) * n // count for n in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield changes[start:end]
