"""The memory trials that the claims need, against CUDA's own allocator: each run in a child process under a cap."""

from __future__ import annotations

import pytest

from repro.catalog import find
from repro.observe import choose
from repro.observe.observer import Observer
from repro.vocabulary import Trial

FAILURE = find("callback-eval-oom")
CLAIMED = {FAILURE.trial(configuration).id: FAILURE.trial(configuration) for configuration in choose.claimed(FAILURE)}


@pytest.mark.gpu
@pytest.mark.parametrize("claimed", [pytest.param(trial, id=name) for name, trial in CLAIMED.items()])
def test_outcome_on_a_real_device_is_the_one_that_the_trigger_predicts(claimed: Trial, observer: Observer) -> None:
    mechanism = observer.mechanism(FAILURE.id)
    assert 2 * mechanism["training_peak"] <= mechanism["capacity"] <= mechanism["reported_peak"] / 2, (
        f"no room for a cap between what fits and what does not: {mechanism}"
    )
    facts = observer.observe(claimed)
    expected = FAILURE.trigger.predict(claimed.configuration, claimed.scope, mechanism)
    assert expected in (None, FAILURE.outcome(facts)), (
        f"{facts['memory']['hardware']}: {observer.rerun_command(claimed)}"
    )
