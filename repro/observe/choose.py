"""Which configurations of a failure are run: every combination, pairwise covering, a reference set, or budgets."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from repro.vocabulary import Configuration, Failure, Level, Scope, Trial

TrialSet = Literal["full", "reference", "budgeted"]
TRIAL_SETS: tuple[TrialSet, ...] = ("full", "reference", "budgeted")


def trials(failure: Failure, trial_set: TrialSet = "full", device: str = "cpu") -> list[Trial]:
    """Return the trials of a failure, without repetition, in an order that keeps those with the same twin together.

    `reference`: every configuration that a claim names, and the neighbours of the reported configuration and of the
    plain run: all that differ from it in one factor. For every setting that a trigger asks for, it so holds the pair
    that proves it: the reported run, and the one that differs in nothing else. `full`: these, every combination at the
    scopes that are small enough, and a pairwise covering array at the others. `budgeted`: those whose peaks have
    budgets, which are in both of the others, too; most failures have none.
    """
    found: dict[str, Trial] = {}
    for configuration in failure.budgeted:
        if failure.runs_on(configuration, device):
            _add(found, failure.trial(configuration))
    if trial_set == "budgeted":
        return list(found.values())
    for configuration in claimed(failure):
        if failure.runs_on(configuration, device):
            _add(found, failure.trial(configuration))
    for centre in (failure.reported, failure.configuration()):
        for configuration in neighbours(failure, centre, device):
            _add(found, failure.trial(configuration))
    if trial_set == "full":
        for scope in failure.full_scopes:
            for configuration in failure.combinations(scope, device):
                _add(found, failure.trial(configuration, scope))
        for scope in failure.pairwise_scopes:
            for configuration in pairwise(failure, scope, device):
                _add(found, failure.trial(configuration, scope))
    return list(found.values())


def _add(found: dict[str, Trial], trial: Trial) -> None:
    found.setdefault(trial.id, trial)


def claimed(failure: Failure) -> Iterator[Configuration]:
    """Yield the configurations that judging the claims needs: for each its base, and its change or its evidence."""
    yield failure.configuration()
    yield failure.reported
    for claim in failure.claims:
        base = claim.base or failure.reported
        yield base
        yield from claim.looks_at
        for change in (claim.change, claim.today):
            if change:
                yield base.but(**change)


def neighbours(failure: Failure, centre: Configuration, device: str = "cpu") -> Iterator[Configuration]:
    """Yield a configuration and all that differ from it in one factor."""
    yield centre
    for factor in failure.factors_at(failure.reported_scope):
        for level in factor.levels_at(failure.reported_scope, device):
            configuration = centre.but(**{factor.name: level})
            if failure.allows(configuration):
                yield configuration


Pair = tuple[tuple[str, Level], tuple[str, Level]]


def pairwise(
    failure: Failure, scope: Scope, device: str = "cpu", seed: int = 0, candidates: int = 11
) -> list[Configuration]:
    """Return configurations in which every two levels of different factors meet, where the constraints allow them to.

    Greedy: of some random candidates around a pair that has not met yet, the one in which most such pairs meet is
    taken. The result depends on the declarations and the seed only.
    """
    rng = random.Random(seed)  # noqa: S311 - a covering array needs repeatability, not secrecy
    levels = {factor.name: factor.levels_at(scope, device) for factor in failure.factors_at(scope)}
    missing = dict.fromkeys(_all_pairs(levels))
    chosen: list[Configuration] = []
    while missing:
        pair = next(iter(missing))
        first = _around(failure, levels, pair, rng)
        if first is None:
            del missing[pair]
            continue
        around = [first, *filter(None, (_around(failure, levels, pair, rng) for _ in range(candidates)))]
        best = max(around, key=lambda c: sum(map(missing.__contains__, pairs_in(levels, c))))
        chosen.append(best)
        for met in pairs_in(levels, best):
            missing.pop(met, None)
    return chosen


def pairs_in(names: Iterable[str], configuration: Configuration) -> Iterator[Pair]:
    """Yield the pairs of levels that meet in a configuration, of the factors named."""
    return itertools.combinations([(name, configuration[name]) for name in names], 2)


def _all_pairs(levels: Mapping[str, Sequence[Level]]) -> Iterator[Pair]:
    for one, other in itertools.combinations(levels, 2):
        for pair in itertools.product(levels[one], levels[other]):
            yield (one, pair[0]), (other, pair[1])


def _around(
    failure: Failure, levels: Mapping[str, Sequence[Level]], pair: Pair, rng: random.Random, attempts: int = 60
) -> Configuration | None:
    """Return an allowed configuration that holds a pair, the rest drawn at random; None when there seems to be none."""
    plain = failure.configuration()
    for _ in range(attempts):
        drawn = {name: choices[int(rng.random() * len(choices))] for name, choices in levels.items()}
        configuration = plain.but(**{**drawn, **dict(pair)})
        if failure.allows(configuration):
            return configuration
    return _near_a_centre(failure, levels, pair, rng)


def _near_a_centre(
    failure: Failure, levels: Mapping[str, Sequence[Level]], pair: Pair, rng: random.Random, attempts: int = 40
) -> Configuration | None:
    """Look for a pair ever nearer to the plain and the reported run: strict constraints allow little that is random."""
    plain = failure.configuration()
    for attempt in range(attempts, -1, -1):
        for centre in (plain, failure.reported):
            drawn = {
                name: rng.choice(choices) if rng.random() < attempt / attempts else centre[name]
                for name, choices in levels.items()
            }
            configuration = plain.but(**{**drawn, **dict(pair)})
            if failure.allows(configuration):
                return configuration
    return None
