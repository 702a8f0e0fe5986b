"""What a frontier is asked of: a failure, the verdict on one of its claims, or a peak. Each needs some trials only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.judge.observed import Cell, Outcome
from repro.judge.verdicts import LOWER_PEAK, judge
from repro.store.records import Record
from repro.vocabulary import RAISES_OTHER, REFUSED, TRAINS, Claim, Configuration, Failure

AFFECTED, GOOD, ABSENT = "affected", "good", "not in the release"
"""What a release may be; `ABSENT` where it does not have the model of the failure at all."""


class QuestionError(ValueError):
    """There is no such question; the message says which there are."""


@dataclass(frozen=True)
class Answer:
    """What one cell says. `value` is None where it says nothing, and `why` then says why.

    `missing`: trials were not run. `contradictory`: observations of one trial disagree.
    """

    value: Any
    why: str = ""
    missing: bool = False
    contradictory: bool = False
    evidence: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Question:
    """One thing that may change from release to release."""

    failure: Failure
    claim: Claim | None = None
    peak_of: Configuration | None = None
    name: str = ""

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations that have to be observed in a cell, at the scope of the report."""
        failure = self.failure
        if self.peak_of is not None:
            return (self.peak_of,)
        if self.claim is None:
            return (failure.configuration(), failure.reported)
        base = self.claim.base or failure.reported
        if self.claim.kind == "statement":
            return tuple(dict.fromkeys((base, *(self.claim.looks_at or (base,)))))
        return (base, base.but(**self.claim.change))

    @property
    def trials(self) -> tuple[str, ...]:
        """The ids of the trials that have to be run in a cell."""
        return tuple(self.failure.trial(configuration).id for configuration in self.configurations)

    def answer(self, cell: Cell) -> Answer:
        """Read the answer off what was observed in a cell. Raises QuestionError when no release can answer."""
        trials = [self.failure.trial(configuration) for configuration in self.configurations]
        if any(_never_ran(cell.observations.get(trial.id, ())) for trial in trials):
            return Answer(None, "did not run", missing=True)
        outcomes = {trial.id: cell.outcome(self.failure, trial.id) for trial in trials}
        evidence = {trial: outcome.evidence for trial, outcome in outcomes.items()}
        torn = [outcome.why for outcome in outcomes.values() if outcome.why.startswith("contradictory")]
        if torn:
            return Answer(None, torn[0], contradictory=True, evidence=evidence)
        value, why = self._value(cell, list(outcomes.values()))
        return Answer(value, why, evidence=evidence)

    def same(self, one: Any, other: Any) -> bool:
        """Tell whether two answers are alike; peaks are within the share that also counts as no change elsewhere."""
        if self.peak_of is None:
            return bool(one == other)
        return bool(abs(one - other) <= LOWER_PEAK * max(one, other))

    def _value(self, cell: Cell, outcomes: list[Outcome]) -> tuple[Any, str]:
        if self.peak_of is not None:
            peak = outcomes[0].facts.get("peak_bytes")
            if peak is None and outcomes[0].name == TRAINS:
                raise QuestionError(f"the trials of {self.failure.id} do not measure a peak")
            return peak, "" if peak else outcomes[0].why or f"no peak was measured: {_told(outcomes[0])}"
        if self.claim is not None:
            verdict = judge(self.failure, self.claim, cell, [cell])[0]
            return verdict.verdict, verdict.detail
        if cell.lacks_the_model:
            return ABSENT, "the release does not have the model"
        plain, reported = outcomes
        if plain.name != TRAINS:
            return None, f"the plain run: {_told(plain)}"
        if reported.name is None or reported.name in (RAISES_OTHER, REFUSED):
            return None, f"the reported run: {_told(reported)}"
        return (GOOD if reported.name == TRAINS else AFFECTED), str(reported.name)


def question(failure: Failure, claim: str = "", peak: str = "") -> Question:
    """Return the question that a user asks. Raises QuestionError for an unknown claim, or one no release answers."""
    if claim and peak:
        raise QuestionError("ask for --claim or for --budget, not for both")
    if claim:
        known = {item.id: item for item in failure.claims}
        if claim not in known:
            raise QuestionError(f"{failure.id} has no claim {claim!r}; it has: {', '.join(known)}")
        if known[claim].pin:
            raise QuestionError(f"{claim} is about moving to another release: the frontier of the failure answers it")
        return Question(failure, known[claim], name=f"claim {claim}")
    if peak:
        named = _named(failure)
        budgeted = {failure.trial(configuration).id: configuration for configuration in failure.budgeted}
        if peak not in named and peak not in budgeted:
            raise QuestionError(
                f"{failure.id} has no budget {peak!r}; it has: {', '.join(map(repr, named))}, and the trials of its "
                f"budgets: {', '.join(budgeted) or 'none'}"
            )
        return Question(failure, peak_of=(named | budgeted)[peak], name=f"peak of {peak}")
    return Question(failure, name=failure.id)


def _named(failure: Failure) -> dict[str, Configuration]:
    """Return the runs whose peak can be asked for: by role, by advice, and as a budget file says `run`."""
    named = {"plain": failure.configuration(), "reported": failure.reported}
    named |= {
        claim.id: (claim.base or failure.reported).but(**claim.change) for claim in failure.claims if claim.change
    }
    for configuration in failure.budgeted:
        changed = (f"{name}={level}" for name, level in sorted(failure.deviations(configuration).items()))
        named[", ".join(changed) or "the plain run"] = configuration
    return named


def _never_ran(records: Sequence[Record]) -> bool:
    """Tell whether a trial has no observation, or none but of the apparatus failing, which is worth another try."""
    return all(record["end"] == "could not run" for record in records)


def _told(outcome: Outcome) -> str:
    error = outcome.facts.get("exception")
    if error:
        first = (str(error["message"]).splitlines() or [""])[0]
        return f"{outcome.name}: {error['type']}: {first[:160]}"
    return outcome.name or outcome.why
