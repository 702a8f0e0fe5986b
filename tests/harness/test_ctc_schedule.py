"""Telling a log that lost rows from one that did not, and the hypothesis from the flags it is stated in."""

from __future__ import annotations

import pytest

from repro.catalog.callback_cancels_schedule import (
    BOTH_LOST,
    EVALUATION_LOST,
    FAILURE,
    LOG_LOST,
    PLAIN,
    REPORTED,
    VALUES_CHANGED,
)
from repro.observe import ctc_schedule
from repro.observe.ctc_schedule import Run, compare
from repro.vocabulary import TRAINS, Configuration, Mechanism

LOG = [{"step": 2, "loss": 3.0}, {"step": 2, "eval_loss": 4.0}, {"step": 4, "loss": 2.0}, {"step": 4, "eval_loss": 3.0}]
BATCHES = ["a", "b", "c", "d"]
ENDED = {"end": "completed", "loss_finite": True, "moved": True}


def _outcome(run: Run) -> str:
    return FAILURE.outcome({**ENDED, **compare(run, Run(log=LOG, batches=BATCHES))})


@pytest.mark.parametrize(
    ("kept", "outcome"),
    [
        (LOG, TRAINS),
        ([row for row in LOG if "loss" in row], EVALUATION_LOST),
        ([row for row in LOG if "eval_loss" in row], LOG_LOST),
        (LOG[:2], BOTH_LOST),
        ([*LOG[:3], {"step": 4, "eval_loss": 3.5}], VALUES_CHANGED),
        ([*LOG, {"step": 4, "train_loss": 9.0}], TRAINS),
    ],
)
def test_what_a_log_lacks_is_the_outcome(kept: list[dict[str, float]], outcome: str) -> None:
    assert _outcome(Run(log=kept, batches=BATCHES)) == outcome


def test_a_loss_on_other_data_is_no_changed_loss() -> None:
    other_loss = [*LOG[:2], {"step": 4, "loss": 2.5}, {"step": 4, "eval_loss": 3.0}]
    assert _outcome(Run(log=other_loss, batches=BATCHES)) == VALUES_CHANGED
    reshuffled = Run(log=other_loss, batches=["a", "b", "d", "c"])
    assert _outcome(reshuffled) == TRAINS
    assert compare(reshuffled, Run(log=LOG, batches=BATCHES))["reshuffled_at"] == 3


CLEARS: Mechanism = {"cleared_by": {"evaluate": ["should_evaluate", "should_log"], "predict": []}}
CLEARS_NOTHING: Mechanism = {"cleared_by": {"evaluate": [], "predict": []}}


@pytest.mark.parametrize("configuration", list(FAILURE.combinations("trainer"))[::61])
def test_nothing_is_lost_in_a_release_that_clears_nothing(configuration: Configuration) -> None:
    assert FAILURE.trigger.predict(configuration, "trainer", CLEARS_NOTHING) == TRAINS


@pytest.mark.parametrize("configuration", list(FAILURE.combinations("trainer"))[::61])
def test_nothing_is_lost_where_the_flags_come_back(configuration: Configuration) -> None:
    if configuration["callback"] != "off":
        assert FAILURE.trigger.predict(configuration.but(control="returns the copy"), "trainer", CLEARS) == TRAINS


def test_the_reported_run_loses_rows_and_the_copy_keeps_them() -> None:
    lost = ctc_schedule.observe(REPORTED)
    assert FAILURE.outcome(lost) == BOTH_LOST
    assert lost["lost_evaluations"] == lost["lost_logs"] == [2, 4, 6]
    kept = ctc_schedule.observe(REPORTED.but(control="returns the copy"))
    assert FAILURE.outcome(kept) == TRAINS
    assert kept["callback_evaluations"] == [2, 4, 6]
    assert FAILURE.outcome(ctc_schedule.observe(PLAIN)) == TRAINS


def test_lost_evaluations_cost_the_best_model() -> None:
    facts = ctc_schedule.observe(REPORTED.but(best_model="yes"))
    assert facts["lost_evaluations"]
    assert facts["best_lost"]
