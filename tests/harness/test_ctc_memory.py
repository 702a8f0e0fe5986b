"""The callback on a full device: a capacity that is derived, an error that is real, and a cure that changes nothing."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.callback_eval_oom import (
    BUDGETED,
    FACTORS,
    FAILURE,
    METRIC_CHANGED,
    METRIC_GONE,
    NOT_EVALUATED,
    OUT_OF_MEMORY,
    OUT_OF_MEMORY_ELSEWHERE,
    PLAIN,
    REPORTED,
)
from repro.memory.meter import Source, meter
from repro.memory.report import Phase, Report
from repro.memory.temporaries import temporaries
from repro.memory.trainer_phases import EVALUATION_BATCH, GATHER, TRAIN_STEP
from repro.observe import ctc_memory, ctc_memory_run, fresh
from repro.observe.ctc_memory_run import Run, prepare, train
from repro.observe.ctc_workload import EMULATED
from repro.vocabulary import RAISES_OTHER, REFUSED, TRAINS, Configuration

MECHANISM: dict[str, Any] = {
    "capacity": 1_000_000,
    "training_peak": 250_000,
    "reported_peak": 4_000_000,
    "resident": 100_000,
    "batch": 50_000,
    "batch_of": 8,
    "frames": {"equal": 10, "ragged": 20},
    "lacks": [],
    "examples": {"training set": 400, "evaluation set": 8, "part of the training set": 8},
}
ENDED: dict[str, Any] = {
    "end": "completed",
    "loss_finite": True,
    "moved": True,
    "configured_to_evaluate": True,
    "callback_evaluations": [5],
    "metrics": {"train_loss": 2.0, "train_wer": 50.0},
    "twin_metrics": {"train_loss": 2.0, "train_wer": 50.0},
    "transcriptions_equal": True,
}


def _raised(kind: str, message: str, *places: str) -> dict[str, Any]:
    exception = {"type": kind, "bases": ["RuntimeError"], "message": message, "frames": []}
    return {**ENDED, "end": "raised", "exception": exception, "raised_in": list(places)}


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (ENDED, TRAINS),
        ({**ENDED, "callback_evaluations": []}, NOT_EVALUATED),
        ({**ENDED, "callback_evaluations": [], "configured_to_evaluate": False}, TRAINS),
        ({**ENDED, "metrics": {"train_loss": 2.0}}, METRIC_GONE),
        ({**ENDED, "metrics": {"train_loss": 2.0, "train_wer": 51.0}}, METRIC_CHANGED),
        ({**ENDED, "metrics": {"train_loss": 2.1, "train_wer": 50.0}}, METRIC_CHANGED),
        ({**ENDED, "metrics": {"train_loss": 2.00001, "train_wer": 50.0}}, TRAINS),
        ({**ENDED, "transcriptions_equal": False}, METRIC_CHANGED),
        (_raised("OutOfMemoryError", "CUDA out of memory.", "on_step_end", "evaluate"), OUT_OF_MEMORY),
        (_raised("OutOfMemoryError", "CUDA out of memory.", "training_step"), OUT_OF_MEMORY_ELSEWHERE),
        (_raised("OutOfMemoryError", "CUDA out of memory.", "evaluate"), OUT_OF_MEMORY_ELSEWHERE),
        (_raised("RuntimeError", "shapes differ", "on_step_end", "evaluate"), RAISES_OTHER),
    ],
)
def test_facts_have_one_outcome(facts: dict[str, Any], outcome: str) -> None:
    assert FAILURE.outcome(facts) == outcome


def _predicted(**levels: Any) -> str | None:
    return FAILURE.trigger.predict(REPORTED.but(**levels), "trainer", MECHANISM)


def test_the_hypothesis_follows_what_is_kept() -> None:
    assert _predicted() == OUT_OF_MEMORY
    assert _predicted(callback="off") == TRAINS
    assert _predicted(accumulation=1) == TRAINS
    assert _predicted(accumulation=1000) == OUT_OF_MEMORY
    assert _predicted(metrics="none") == TRAINS
    assert _predicted(schedule="epoch") == NOT_EVALUATED
    assert _predicted(call_batch=2) == REFUSED
    assert _predicted(preprocess="argmax") == TRAINS


def test_the_hypothesis_knows_when_padding_is_transcribed() -> None:
    assert _predicted(dataset="evaluation set", lengths="ragged", preprocess="argmax") == TRAINS
    assert _predicted(lengths="ragged", preprocess="argmax") == METRIC_CHANGED
    assert _predicted(dataset="evaluation set", lengths="ragged", eval_batch=2) == METRIC_CHANGED


@given(levels=st.fixed_dictionaries({factor.name: st.sampled_from(factor.levels) for factor in FACTORS}))
def test_what_fits_still_fits_a_larger_device(levels: dict[str, Any]) -> None:
    configuration = FAILURE.configuration(**levels)
    larger = {**MECHANISM, "capacity": 100 * MECHANISM["capacity"]}
    here, there = (FAILURE.trigger.predict(configuration, "trainer", mechanism) for mechanism in (MECHANISM, larger))
    assert there != OUT_OF_MEMORY
    if here not in (None, OUT_OF_MEMORY, "no batch size is left to try"):
        assert there == here


def test_batches_of_an_evaluation_are_joined_with_their_highest_peak() -> None:
    passages = tuple(
        Phase(name, start, start + 1, start, start + 1, peak)
        for start, (name, peak) in enumerate([("train step", 9), ("evaluation batch", 3), ("evaluation batch", 7)])
    )
    assert ctc_memory._joined(passages) == (passages[0], Phase("evaluation batch", 1, 3, 1, 3, 7))


def observe(configuration: Configuration) -> dict[str, Any]:
    return dict(FAILURE.observe(FAILURE.trial(configuration)))


@pytest.fixture(scope="module")
def reported() -> dict[str, Any]:
    return observe(REPORTED)


def test_the_capacity_has_room_for_training_and_not_for_the_reported_run(reported: dict[str, Any]) -> None:
    mechanism = FAILURE.probe()
    assert 2 * mechanism["training_peak"] <= mechanism["capacity"] <= mechanism["reported_peak"] / 2
    assert FAILURE.outcome(reported) == OUT_OF_MEMORY
    assert reported["memory"]["refusals"]
    assert reported["memory"]["peak_bytes"] <= mechanism["capacity"] < reported["peak_bytes"]
    assert FAILURE.outcome(observe(PLAIN)) == TRAINS


def test_a_run_takes_the_same_bytes_again_and_leaves_none(reported: dict[str, Any]) -> None:
    again = observe(REPORTED)
    for fact in ("peak_bytes", "phases", "capacity", "memory"):
        assert again[fact] == reported[fact]
    with meter() as after:
        gc.collect()
    assert after.report.peak_bytes == after.report.live_bytes == 0


def test_the_cure_evaluates_as_the_uncured_run_would() -> None:
    cured = observe(REPORTED.but(accumulation=1))
    assert FAILURE.outcome(cured) == TRAINS
    assert cured["metrics"] == cured["twin_metrics"]
    assert "train_wer" in cured["metrics"]


def _metered_by(source: Source, configuration: Configuration) -> tuple[Report, dict[str, int]]:
    """Run a configuration under one meter; with the allocator, list what operators allocate within themselves, too."""
    fresh.start()
    run, prepared = Run(), prepare(configuration, EMULATED)
    table: dict[str, int] = {}
    with ExitStack() as open_:
        m = open_.enter_context(meter(source=source))
        if source == "allocator":
            table = open_.enter_context(temporaries())
        train(configuration, EMULATED, prepared, run, m)
    assert run.exception is None
    return m.report, table


@pytest.mark.parametrize("configuration", BUDGETED, ids=[str(FAILURE.deviations(each)) for each in BUDGETED])
def test_two_meters_agree_to_the_byte_in_evaluation_and_in_training_within_one_operator(
    configuration: Configuration,
) -> None:
    (exact, table), (ledger, _) = (_metered_by(source, configuration) for source in ("allocator", "ledger"))
    assert exact.peak_of(EVALUATION_BATCH) == ledger.peak_of(EVALUATION_BATCH)
    assert exact.peak_of(GATHER) == ledger.peak_of(GATHER)
    softmax = table["aten._log_softmax_backward_data.default"]
    assert softmax <= exact.peak_of(TRAIN_STEP) - ledger.peak_of(TRAIN_STEP) <= softmax + 16 * 1024


def test_where_logits_are_narrow_two_meters_differ_by_a_copy_of_the_mask_that_cumsum_makes() -> None:
    configuration = REPORTED.but(vocabulary=32, concat="no")
    (exact, table), (ledger, _) = (_metered_by(source, configuration) for source in ("allocator", "ledger"))
    copies = 2 * 8 * 3200 * 8  # of eight examples' masks in 64 bits: what goes in, and the sum
    assert table["aten.cumsum.default"] == copies
    difference = exact.peak_of(EVALUATION_BATCH) - ledger.peak_of(EVALUATION_BATCH)
    assert 0 < difference <= copies // 2


def test_a_capacity_below_what_training_needs_is_told_apart_from_the_failure() -> None:
    enough = FAILURE.probe()["training_peak"]
    facts = {**ctc_memory.observe(PLAIN, capacity=enough - 512), "configured_to_evaluate": False}
    assert FAILURE.outcome(facts) == OUT_OF_MEMORY_ELSEWHERE
    assert "training_step" in facts["raised_in"]
    assert "evaluate" not in facts["raised_in"]
    assert f"total capacity of {enough - 512} bytes" in facts["exception"]["message"]
    assert facts["peak_bytes"] == enough
    fits = {**ctc_memory.observe(PLAIN, capacity=enough), "configured_to_evaluate": False}
    assert FAILURE.outcome(fits) == TRAINS


def test_what_another_trial_left_behind_changes_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    before = observe(PLAIN)["peak_bytes"]
    plain_arguments = ctc_memory_run.arguments

    def in_bf16(*given: Any) -> dict[str, Any]:
        return {**plain_arguments(*given), "bf16": True}

    with monkeypatch.context() as patched:
        patched.setattr(ctc_memory_run, "arguments", in_bf16)
        other = observe(PLAIN)
    assert other["peak_bytes"] != before, "the other trial has to be one that leaves something"
    loop: list[Any] = [torch.zeros(100_000)]
    loop.append(loop)
    left = meter(capacity=512)
    del loop
    assert observe(PLAIN)["peak_bytes"] == before
    left.close()


@pytest.mark.parametrize(("size", "value"), [("train_set", 0), ("small_set", -8), ("words", -1), ("small_set", 1000)])
def test_senseless_sizes_of_a_run_are_refused(size: str, value: int) -> None:
    with pytest.raises(ValueError, match=r"must be positive|more than the training set"):
        replace(EMULATED, **{size: value})
