"""Minimal conditions over factors with any number of levels: prime implicants, and the smallest cover by them.

A cube allows a set of levels per factor, and a condition is a list of cubes of which one has to hold. Everything that
was not observed (a combination that a constraint excludes, or one that nobody ran) is a don't-care. Two-valued
minimizers would need an encoding of three levels in bits, whose implicants speak of bits and not of levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Point = tuple[int, ...]
"""A combination of levels: the index of the level, for each factor."""

Cube = tuple[int, ...]
"""For each factor the levels it allows, as a bit set: bit i stands for level i."""


def holds(cube: Cube, point: Point) -> bool:
    """Tell whether a point lies in a cube."""
    return all(allowed >> level & 1 for allowed, level in zip(cube, point, strict=True))


def within(inner: Cube, outer: Cube) -> bool:
    """Tell whether a cube lies in another."""
    return all(not small & ~large for small, large in zip(inner, outer, strict=True))


def literals(cube: Cube, sizes: Sequence[int]) -> int:
    """Count the factors that a cube restricts."""
    return sum(allowed != (1 << size) - 1 for allowed, size in zip(cube, sizes, strict=True))


def primes(on: Iterable[Point], off: Iterable[Point], sizes: Sequence[int]) -> list[Cube]:
    """Return every largest cube that holds a point of `on` and none of `off`.

    Starts from the cube of everything and takes the points of `off` out one by one: a cube that holds one falls into
    one smaller cube per factor, and those that lie within another are dropped.
    """
    wanted = sorted(set(on))
    found: set[Cube] = {tuple((1 << size) - 1 for size in sizes)} if wanted else set()
    for point in sorted(set(off)):
        hit = {cube for cube in found if holds(cube, point)}
        kept = found - hit
        fresh: set[Cube] = set()
        for cube in hit:
            for factor, level in enumerate(point):
                smaller = (*cube[:factor], cube[factor] & ~(1 << level), *cube[factor + 1 :])
                if smaller[factor] and any(holds(smaller, other) for other in wanted):
                    fresh.add(smaller)
        found = kept | {
            cube
            for cube in fresh
            if not any(within(cube, other) for other in kept)
            and not any(cube != other and within(cube, other) for other in fresh)
        }
    return sorted(found, key=lambda cube: (literals(cube, sizes), tuple(-allowed for allowed in cube)))


def smallest_cover(on: Iterable[Point], candidates: Sequence[Cube], sizes: Sequence[int]) -> list[Cube]:
    """Return the fewest candidates that hold all points of `on`; among those the fewest literals, then the first.

    Exact, by branching on the point that the fewest candidates hold. Raises ValueError when no candidates cover `on`.
    """
    points = sorted(set(on))
    covers = [sum(1 << n for n, point in enumerate(points) if holds(cube, point)) for cube in candidates]
    costs = [(1, literals(cube, sizes)) for cube in candidates]
    useful = [
        i
        for i, cover in enumerate(covers)
        if cover and not any(_dominates(covers, costs, j, i) for j in range(len(covers)) if j != i)
    ]
    holders = {n: [i for i in useful if covers[i] >> n & 1] for n in range(len(points))}
    if not all(holders.values()):
        raise ValueError("some points are in no candidate")
    everything = (1 << len(points)) - 1
    best: tuple[tuple[int, int], list[int]] = ((len(points) + 1, 0), [])

    def search(covered: int, chosen: list[int], cost: tuple[int, int]) -> None:
        nonlocal best
        if covered == everything:
            if cost < best[0]:
                best = (cost, list(chosen))
            return
        open_points = [n for n in holders if not covered >> n & 1]
        if (cost[0] + _needed(open_points, holders), cost[1]) >= best[0]:
            return
        hardest = min(open_points, key=lambda n: len(holders[n]))
        for i in sorted(holders[hardest], key=lambda i: (-(covers[i] & ~covered).bit_count(), costs[i], i)):
            search(covered | covers[i], [*chosen, i], (cost[0] + 1, cost[1] + costs[i][1]))

    search(0, [], (0, 0))
    return [candidates[i] for i in sorted(best[1])]


def _needed(open_points: Sequence[int], holders: dict[int, list[int]]) -> int:
    """Return a lower bound on the candidates still needed: points that no two of share a candidate need one each."""
    used: set[int] = set()
    needed = 0
    for n in sorted(open_points, key=lambda n: len(holders[n])):
        if used.isdisjoint(holders[n]):
            used.update(holders[n])
            needed += 1
    return needed


def _dominates(covers: Sequence[int], costs: Sequence[tuple[int, int]], one: int, other: int) -> bool:
    """Tell whether a candidate makes another one needless: it covers as much, for no more."""
    if covers[other] & ~covers[one] or costs[one] > costs[other]:
        return False
    return (covers[one], costs[one]) != (covers[other], costs[other]) or one < other
