"""The minimal condition of each outcome in a range of releases, and the evidence for every literal of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from repro.trigger import cubes
from repro.trigger.ranges import Range
from repro.trigger.table import CellTable, Row
from repro.vocabulary import Configuration, Factor, Failure, Level


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


def conditions(failure: Failure, span: Range) -> list[Condition]:
    """Return the condition of every outcome that was observed in a range, symptoms first and `trains` last."""
    rows = span.rows
    outcomes = {row.outcome for row in rows.values()}
    order = [symptom.outcome for symptom in failure.symptoms]
    factors = [_observed(factor, rows) for factor in failure.factors_at(span.scope)]
    pairs = [pair for table in span.tables for pair in single_differences(factors, table)]
    complete = span.scope in failure.full_scopes and all(
        c in rows for c in failure.combinations(span.scope, span.device)
    )
    ranked = sorted(outcomes, key=lambda o: (order.index(o) if o in order else len(order) + (o == "trains"), o))
    return [_condition(failure, outcome, factors, rows, pairs, complete) for outcome in ranked]


def single_differences(factors: Sequence[Factor], table: CellTable) -> Iterator[Pair]:
    """Yield every two trials of a cell that differ in one factor alone."""
    for factor in factors:
        alike: dict[tuple[Level, ...], list[Row]] = {}
        others = [other.name for other in factors if other is not factor]
        for configuration, row in table.rows.items():
            levels = dict(configuration)
            alike.setdefault(tuple(levels[name] for name in others), []).append(row)
        for rows in alike.values():
            for n, one in enumerate(rows):
                for other in rows[n + 1 :]:
                    yield Pair(factor.name, table.cell, one, other)


def _observed(factor: Factor, rows: Mapping[Configuration, Row]) -> Factor:
    """Return the factor with the levels that were observed only: of others nothing can be said."""
    seen = {configuration[factor.name] for configuration in rows}
    return Factor(factor.name, tuple(level for level in factor.levels if level in seen), factor.says)


def _condition(
    failure: Failure,
    outcome: str,
    factors: Sequence[Factor],
    rows: Mapping[Configuration, Row],
    pairs: Sequence[Pair],
    complete: bool,
) -> Condition:
    telling = [pair for pair in pairs if pair.tells(outcome)]
    used = _enough(outcome, factors, rows, {pair.factor for pair in telling})
    sizes = [len(factor.levels) for factor in used]
    on, off = _projected(outcome, used, rows)
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
        and (count := _kept_beside(outcome, factor.name, [f.name for f in factors if f.name not in never], rows))
    }
    return Condition(
        outcome,
        terms,
        sum(row.outcome == outcome for row in rows.values()),
        complete,
        never,
        tied,
        tuple(f.name for f in factors if f.name not in matters and f.name not in never and f.name not in tied),
    )


def _kept_beside(outcome: str, factor: str, others: Sequence[str], rows: Mapping[Configuration, Row]) -> int:
    """Count the pairs that differ in a factor, are alike in `others`, and both have the outcome; 0 if any has it once.

    Rows of several cells may meet here: releases that were joined do not contradict each other.
    """
    fixed = [name for name in others if name != factor]
    groups: dict[tuple[Level, ...], list[tuple[Level, bool]]] = {}
    for configuration, row in rows.items():
        levels = dict(configuration)
        groups.setdefault(tuple(levels[name] for name in fixed), []).append((levels[factor], row.outcome == outcome))
    kept = 0
    for group in groups.values():
        for n, (level, has) in enumerate(group):
            for other, also in group[n + 1 :]:
                if level != other and has != also:
                    return 0
                kept += level != other and has
    return kept


def _enough(
    outcome: str, factors: Sequence[Factor], rows: Mapping[Configuration, Row], proven: set[str]
) -> list[Factor]:
    """Return the factors to state the condition in: those proven to matter, and more only if these cannot tell.

    In a table with every combination they always can. Where few were run, a condition that happens to fit could be
    made of any factor; one made of proven factors is a better guess.
    """
    used = [factor for factor in factors if factor.name in proven]
    rest = [factor for factor in factors if factor.name not in proven]
    while rest and (torn := _torn(outcome, used, rows)):
        best = min(rest, key=lambda factor: _torn(outcome, [*used, factor], rows))
        if _torn(outcome, [*used, best], rows) == torn and len(rest) == 1:
            break
        used.append(best)
        rest.remove(best)
    return [factor for factor in factors if factor in used]


def _torn(outcome: str, used: Sequence[Factor], rows: Mapping[Configuration, Row]) -> int:
    """Count the combinations of some factors' levels that were seen with the outcome and without it."""
    on, off = _projected(outcome, used, rows)
    return len(on & off)


def _projected(
    outcome: str, used: Sequence[Factor], rows: Mapping[Configuration, Row]
) -> tuple[set[cubes.Point], set[cubes.Point]]:
    """Return the combinations of some factors' levels, as indices, that have the outcome, and that have another."""
    index = [(factor.name, {level: n for n, level in enumerate(factor.levels)}) for factor in used]
    on: set[cubes.Point] = set()
    off: set[cubes.Point] = set()
    for configuration, row in rows.items():
        levels = dict(configuration)
        (on if row.outcome == outcome else off).add(tuple(of[levels[name]] for name, of in index))
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
