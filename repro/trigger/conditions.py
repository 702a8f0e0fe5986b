"""The minimal condition of each outcome in a range of releases, and the evidence for every literal of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from repro.trigger import cubes
from repro.trigger.ranges import Range
from repro.trigger.table import CellTable, Row
from repro.vocabulary import Configuration, Factor, Failure, Level, Scope


@dataclass(frozen=True)
class Pair:
    """Two trials of one cell that differ in one factor alone."""

    factor: str
    cell: str
    one: Row
    other: Row

    def tells(self, outcome: str) -> bool:
        """Tell whether exactly one of the two has the outcome."""
        return (self.one.outcome == outcome) != (self.other.outcome == outcome)

    def keeps(self, outcome: str) -> bool:
        """Tell whether both have the outcome."""
        return self.one.outcome == self.other.outcome == outcome


@dataclass(frozen=True)
class Literal:
    """A factor and the levels that a condition allows it, out of those that were observed.

    `evidence` is a pair whose first trial meets the whole condition and has the outcome, and whose second differs in
    this factor alone and has another outcome; None when no such pair was observed.
    """

    factor: str
    levels: tuple[Level, ...]
    of: tuple[Level, ...]
    evidence: Pair | None


@dataclass(frozen=True)
class Condition:
    """When an outcome comes: exactly when all literals of one of the terms hold, as far as observed.

    `complete` tells whether every allowed combination was observed: only then does "exactly" mean exactly.
    `never_matters` counts, per factor, the pairs that differ in it alone and both have this outcome, where no pair has
    it on one side only. `nor_these` counts the same for factors that a constraint ties to others: their pairs differ in
    some of `never_matters`, too. `untested` are factors without any pair that could tell.
    """

    outcome: str
    terms: tuple[tuple[Literal, ...], ...]
    rows: int
    complete: bool
    never_matters: Mapping[str, int]
    nor_these: Mapping[str, int]
    untested: tuple[str, ...]

    @property
    def proven(self) -> bool:
        """Whether every literal has its pair of trials, or nothing was left out: anything else is a guess that fits."""
        return self.complete or all(literal.evidence for term in self.terms for literal in term)


Cases = Sequence[tuple[Mapping[str, Level], str]]
"""Levels by factor with the outcome: rows in the form that is quick to look things up in."""


def conditions(failure: Failure, span: Range, possible: frozenset[Configuration] | None = None) -> list[Condition]:
    """Return the condition of every outcome that was observed in a range, symptoms first and `trains` last.

    `possible` is what `everything` returns, for those who have it at hand.
    """
    rows = span.rows
    if possible is None:
        possible = everything(failure, span.scope, span.device)
    complete = bool(possible) and possible <= rows.keys()
    cases = [(dict(configuration), row.outcome) for configuration, row in rows.items()]
    factors = [_observed(factor, cases) for factor in failure.factors_at(span.scope)]
    pairs = _distinct_pairs(factors, span)
    order = [symptom.outcome for symptom in failure.symptoms]
    outcomes = {outcome for _, outcome in cases}
    ranked = sorted(outcomes, key=lambda o: (order.index(o) if o in order else len(order) + (o == "trains"), o))
    return [_condition(failure, outcome, factors, cases, pairs, complete) for outcome in ranked]


def everything(failure: Failure, scope: Scope, device: str) -> frozenset[Configuration]:
    """Return every configuration that a device can run at a scope; none at a scope that is not run in full."""
    return frozenset(failure.combinations(scope, device)) if scope in failure.full_scopes else frozenset()


def _distinct_pairs(factors: Sequence[Factor], span: Range) -> list[Pair]:
    """Return each pair of trials once, from one of the cells that saw both.

    A cell that saw nothing that a larger one did not see has no pair of its own.
    """
    found: dict[tuple[str, ...], Pair] = {}
    searched: list[CellTable] = []
    for table in sorted(span.tables, key=lambda table: -len(table.rows)):
        if not any(table.rows.keys() <= larger.rows.keys() for larger in searched):
            searched.append(table)
            for pair in single_differences(factors, table):
                found.setdefault((pair.factor, *sorted((pair.one.trial, pair.other.trial))), pair)
    return list(found.values())


def single_differences(factors: Sequence[Factor], table: CellTable) -> Iterator[Pair]:
    """Yield every two trials of a cell that differ in one factor alone."""
    cases = [(dict(configuration), row) for configuration, row in table.rows.items()]
    points = [(tuple(levels[factor.name] for factor in factors), row) for levels, row in cases]
    for number, factor in enumerate(factors):
        alike: dict[tuple[Level, ...], list[Row]] = {}
        for point, row in points:
            alike.setdefault((*point[:number], *point[number + 1 :]), []).append(row)
        for rows in alike.values():
            for n, one in enumerate(rows):
                for other in rows[n + 1 :]:
                    yield Pair(factor.name, table.cell, one, other)


def _observed(factor: Factor, cases: Cases) -> Factor:
    """Return the factor with the levels that were observed only: of others nothing can be said."""
    seen = {levels[factor.name] for levels, _ in cases}
    return Factor(factor.name, tuple(level for level in factor.levels if level in seen), factor.says)


def _condition(
    failure: Failure,
    outcome: str,
    factors: Sequence[Factor],
    cases: Cases,
    pairs: Sequence[Pair],
    complete: bool,
) -> Condition:
    telling = [pair for pair in pairs if pair.tells(outcome)]
    used = _enough(outcome, factors, cases, {pair.factor for pair in telling})
    sizes = [len(factor.levels) for factor in used]
    on, off = _projected(outcome, used, cases)
    chosen = cubes.smallest_cover(on, cubes.primes(on, off, sizes), sizes)
    terms = tuple(_term(outcome, cube, used, failure, telling) for cube in chosen)
    matters = {pair.factor for pair in telling} | {literal.factor for term in terms for literal in term}
    kept = Counter(pair.factor for pair in pairs if pair.keeps(outcome) and pair.factor not in matters)
    never = {factor.name: kept[factor.name] for factor in factors if kept[factor.name]}
    tied = {
        factor.name: count
        for factor in factors
        if factor.name not in matters
        and factor.name not in never
        and (count := _kept_beside(outcome, factor.name, [f.name for f in factors if f.name not in never], cases))
    }
    return Condition(
        outcome,
        terms,
        sum(found == outcome for _, found in cases),
        complete,
        never,
        tied,
        tuple(f.name for f in factors if f.name not in matters and f.name not in never and f.name not in tied),
    )


def _kept_beside(outcome: str, factor: str, others: Sequence[str], cases: Cases) -> int:
    """Count the pairs that differ in a factor, are alike in `others`, and both have the outcome; 0 if any has it once.

    Rows of several cells may meet here: releases that were joined do not contradict each other.
    """
    fixed = [name for name in others if name != factor]
    groups: dict[tuple[Level, ...], list[tuple[Level, bool]]] = {}
    for levels, found in cases:
        groups.setdefault(tuple(levels[name] for name in fixed), []).append((levels[factor], found == outcome))
    kept = 0
    for group in groups.values():
        for n, (level, has) in enumerate(group):
            for other, also in group[n + 1 :]:
                if level != other and has != also:
                    return 0
                kept += level != other and has
    return kept


def _enough(outcome: str, factors: Sequence[Factor], cases: Cases, proven: set[str]) -> list[Factor]:
    """Return the factors to state the condition in: those proven to matter, and more only if these cannot tell.

    In a table with every combination they always can. Where few were run, a condition that happens to fit could be
    made of any factor; one made of proven factors is a better guess.
    """
    used = [factor for factor in factors if factor.name in proven]
    rest = [factor for factor in factors if factor.name not in proven]
    while rest and (torn := _torn(outcome, used, cases)):
        best = min(rest, key=lambda factor: _torn(outcome, [*used, factor], cases))
        if _torn(outcome, [*used, best], cases) == torn and len(rest) == 1:
            break
        used.append(best)
        rest.remove(best)
    return [factor for factor in factors if factor in used]


def _torn(outcome: str, used: Sequence[Factor], cases: Cases) -> int:
    """Count the combinations of some factors' levels that were seen with the outcome and without it."""
    on, off = _projected(outcome, used, cases)
    return len(on & off)


def _projected(outcome: str, used: Sequence[Factor], cases: Cases) -> tuple[set[cubes.Point], set[cubes.Point]]:
    """Return the combinations of some factors' levels, as indices, that have the outcome, and that have another."""
    index = [(factor.name, {level: n for n, level in enumerate(factor.levels)}) for factor in used]
    on: set[cubes.Point] = set()
    off: set[cubes.Point] = set()
    for levels, found in cases:
        (on if found == outcome else off).add(tuple(of[levels[name]] for name, of in index))
    return on, off


def _term(
    outcome: str, cube: cubes.Cube, used: Sequence[Factor], failure: Failure, telling: Sequence[Pair]
) -> tuple[Literal, ...]:
    allowed = {
        factor.name: tuple(level for n, level in enumerate(factor.levels) if levels >> n & 1)
        for factor, levels in zip(used, cube, strict=True)
    }
    return tuple(
        Literal(f.name, allowed[f.name], f.levels, _evidence(outcome, f.name, allowed, failure, telling))
        for f in used
        if allowed[f.name] != f.levels
    )


def _evidence(
    outcome: str, factor: str, allowed: Mapping[str, Sequence[Level]], failure: Failure, telling: Sequence[Pair]
) -> Pair | None:
    """Return the pair nearest to the plain run that shows why a term has a literal: first the trial that meets it."""
    found: list[tuple[int, int, Pair]] = []
    for number, pair in enumerate(telling):
        if pair.factor != factor:
            continue
        one, other = (pair.one, pair.other) if pair.one.outcome == outcome else (pair.other, pair.one)
        levels = dict(one.configuration)
        if all(levels[name] in of for name, of in allowed.items()):
            distance = len(failure.deviations(one.configuration))
            found.append((distance, number, Pair(factor, pair.cell, one, other)))
    return min(found)[2] if found else None
