"""`repro.check(trainer)`: every known failure that a trainer is about to hit, with what cures it there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from repro.guard import live
from repro.guard.live import Live
from repro.vocabulary import TRAINS, Claim, Failure, Recognised


class KnownFailureWarning(UserWarning):
    """A known failure is about to happen."""


@dataclass(frozen=True)
class Alarm:
    """A known failure that a trainer is about to hit: its outcome, the reason, and changes after which it trains."""

    failure: str
    outcome: str
    says: str
    cures: tuple[Claim, ...]

    def __str__(self) -> str:
        text = f"{self.failure}: this run is going to end in {self.outcome!r}: {self.says}."
        for claim in self.cures[:1]:
            text += f"\nWhat cures it: {claim.says}" + (f"\n{claim.code}" if claim.code else "")
        return text + f"\nMore: repro show {self.failure}"


def check(trainer: Any) -> tuple[Alarm, ...]:
    """Look at a `Trainer` before `train()`, warn of each known failure that it is going to hit, and return them all.

    Nothing of the trainer is changed, and no random number is drawn from its generators. A trainer in which no known
    failure recognises its kind of model passes.
    """
    alarms = tuple(_alarms(live.of(trainer)))
    for alarm in alarms:
        warnings.warn(str(alarm), KnownFailureWarning, stacklevel=2)
    return alarms


def look(situation: Live) -> tuple[Alarm, ...]:
    """Return the alarms for what there is of a trainer, without a warning."""
    return tuple(_alarms(situation))


def _alarms(situation: Live) -> Iterator[Alarm]:
    from repro.catalog import failures

    for failure in failures().values():
        if failure.retired or failure.recognise is None:
            continue
        recognised = failure.recognise(situation)
        if recognised is not None:
            yield from _predicted(failure, recognised)


def _predicted(failure: Failure, recognised: Recognised) -> Iterator[Alarm]:
    outcome = failure.trigger.predict(recognised.configuration, "trainer", recognised.mechanism)
    if outcome in (None, TRAINS):
        return
    says = next((symptom.says for symptom in failure.symptoms if symptom.outcome == outcome), failure.summary)
    yield Alarm(failure.id, str(outcome), says, tuple(_cures(failure, recognised)))


def _cures(failure: Failure, recognised: Recognised) -> Iterator[Claim]:
    """Yield advice after which, by the same trigger and mechanism, this very configuration trains; with code first."""
    advice = [claim for claim in failure.claims if claim.kind == "advice" and claim.change and not claim.needs_device]
    for claim in sorted(advice, key=lambda claim: not claim.code):
        changed = recognised.configuration.but(**dict(claim.change))
        if changed["checkpointing"] == "off":
            changed = changed.but(use_reentrant="unset")
        if failure.allows(changed) and failure.trigger.predict(changed, "trainer", recognised.mechanism) == TRAINS:
            yield claim
