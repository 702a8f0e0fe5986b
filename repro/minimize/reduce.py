"""Reducing a failing configuration, trial by trial, in the current process. Cell tier: runs inside pytest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from repro.minimize.ddmin import ddmin
from repro.vocabulary import TRAINS, UNFINISHED, Configuration, Facts, Failure, Level, Scope, Trial

Setting = tuple[str, Level]
"""A factor and the level that it has instead of its default."""


@dataclass(frozen=True)
class Test:
    """One trial that was made, and what it was made for."""

    why: str
    settings: Mapping[str, Level]
    trial: str
    outcome: str
    seconds: float


@dataclass
class Reduction:
    """What came of it. `minimal` is None where the start does not fail; `weaker` are settings that do as well.

    `again` is the outcome of running the minimal configuration once more: anything else than `outcome` means that it
    does not fail reliably.
    """

    failure: str
    scope: Scope
    start: Mapping[str, Level]
    outcome: str
    minimal: dict[str, Level] | None = None
    weaker: list[dict[str, Level]] = field(default_factory=list)
    again: str = ""
    detail: str = ""
    seconds: float = 0.0
    tests: list[Test] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def reduce(failure: Failure, start: Configuration, scope: Scope, observe: Callable[[Trial], Facts]) -> Reduction:
    """Find the smallest set of settings with the same outcome as the start's.

    Settings that other scopes have only are dropped from the start. A combination that a constraint excludes is not
    run: it counts as one that does not fail.
    """
    here = {factor.name for factor in failure.factors_at(scope)}
    start = failure.configuration(**{name: level for name, level in start.items() if name in here})
    began = time.perf_counter()
    bench = _Bench(failure, scope, observe)
    outcome = bench.test("the start", start)
    done = Reduction(failure.id, scope, failure.deviations(start), outcome, detail=bench.detail)
    if outcome != TRAINS and outcome not in UNFINISHED:
        _shrink(done, bench)
    done.tests, done.seconds = bench.tests, round(time.perf_counter() - began, 3)
    return done


def _shrink(done: Reduction, bench: _Bench) -> None:
    def fails(settings: tuple[Setting, ...]) -> bool:
        return bench.fails("a part", dict(settings), done.outcome)

    minimal = dict(ddmin(tuple(done.start.items()), fails))
    done.minimal = minimal
    done.weaker = [other for other in _simpler(bench.failure, minimal) if bench.fails("simpler", other, done.outcome)]
    done.again = bench.test("again", bench.failure.configuration(**minimal))


def _simpler(failure: Failure, minimal: Mapping[str, Level]) -> list[dict[str, Level]]:
    """Return the same settings with one at a level that is declared before its own, the default left out."""
    factors = {factor.name: factor for factor in failure.factors}
    return [
        {**minimal, name: other}
        for name, level in minimal.items()
        for other in factors[name].levels[1 : factors[name].levels.index(level)]
    ]


class _Bench:
    """Runs trials and keeps account of them."""

    def __init__(self, failure: Failure, scope: Scope, observe: Callable[[Trial], Facts]) -> None:
        self.failure, self.scope, self._observe = failure, scope, observe
        self.tests: list[Test] = []
        self.detail = ""

    def fails(self, why: str, settings: Mapping[str, Level], outcome: str) -> bool:
        configuration = self.failure.configuration(**settings)
        return self.failure.allows(configuration) and self.test(why, configuration) == outcome

    def test(self, why: str, configuration: Configuration) -> str:
        trial = self.failure.trial(configuration, self.scope)
        began = time.perf_counter()
        facts = self._observe(trial)
        outcome = self.failure.outcome(facts)
        error = facts.get("exception")
        self.detail = f"{error['type']}: {error['message'][:300]}" if error else str(facts.get("detail", ""))
        seconds = round(time.perf_counter() - began, 3)
        self.tests.append(Test(why, self.failure.deviations(configuration), trial.id, outcome, seconds))
        return outcome
