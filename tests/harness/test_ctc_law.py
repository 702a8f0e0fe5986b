"""The law of a run whose callback evaluates, against the meter: over every configuration that there can be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from repro.catalog.callback_eval_oom import BUDGETED, FACTORS, FAILURE, PLAIN, law
from repro.memory import laws
from repro.memory.report import Report
from repro.memory.trainer_phases import TRAIN_STEP
from repro.observe import ctc_law, ctc_memory, fresh
from repro.observe.ctc_workload import EMULATED, ON_CUDA
from repro.speech import wav2vec2
from repro.vocabulary import Configuration

FITTED_TO = "5.24"
pytestmark = pytest.mark.skipif(
    Version(transformers.__version__).release[:2] != Version(FITTED_TO).release,
    reason=f"the law is fitted to transformers {FITTED_TO}; `repro budgets compare` has the others",
)

WITHOUT_A_LAW = {("schedule", "every 100 steps"), ("schedule", "epoch, as written"), ("call_batch", 2)}
"""The levels with which a run ends before its peak, or is too long for a test."""


@st.composite
def configurations_with_a_law(draw: st.DrawFn) -> Configuration:
    configuration = PLAIN
    for factor in draw(st.permutations(FACTORS)):
        level = draw(st.sampled_from([each for each in factor.levels if (factor.name, each) not in WITHOUT_A_LAW]))
        changed = configuration.but(**{factor.name: level})
        if FAILURE.allows(changed):
            configuration = changed
    return configuration


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    ctc_memory._emulated(PLAIN, None)
    fresh.settle()


def _metered(configuration: Configuration) -> Report:
    run = ctc_memory._emulated(configuration, None)
    assert run.exception is None
    assert run.report is not None
    return run.report


def _measured(configuration: Configuration) -> int:
    return _metered(configuration).peak_bytes


@pytest.mark.parametrize("configuration", BUDGETED, ids=[str(FAILURE.deviations(each)) for each in BUDGETED])
def test_the_law_is_within_two_percent_of_every_peak_with_a_budget(configuration: Configuration) -> None:
    assert law(configuration).bytes == pytest.approx(_measured(configuration), rel=0.02)


@settings(max_examples=12, deadline=None)
@given(configuration=configurations_with_a_law())
def test_the_law_is_within_two_percent_of_any_configuration(configuration: Configuration) -> None:
    assert law(configuration).bytes == pytest.approx(_measured(configuration), rel=0.02), str(law(configuration))


@pytest.mark.parametrize("vocabulary", [32, 256])
def test_the_laws_model_is_the_trials(vocabulary: int) -> None:
    model = wav2vec2.build(layers=EMULATED.layers, width=EMULATED.width, vocabulary=vocabulary)
    shapes = sorted(tuple(parameter.shape) for parameter in model.parameters())
    assert shapes == sorted(EMULATED.sizes(vocabulary).shapes())
    assert EMULATED.sizes(vocabulary).frames(3200)[-1] == wav2vec2.frames(3200)


@pytest.mark.parametrize("lengths", ["equal", "ragged"])
def test_clips_have_the_lengths_that_the_law_takes_them_to_have(lengths: str) -> None:
    rows = wav2vec2.prepared(60, 3, *EMULATED.lengths(lengths))
    clips = list(EMULATED.clips(lengths, 60, seed=3))
    assert [len(row["input_values"]) for row in rows] == [samples for samples, _ in clips]
    labels = [len(row["labels"]) for row in rows]
    assert all(real <= most for real, (_, most) in zip(labels, clips, strict=True))
    if lengths == "ragged":
        assert labels == [length for _, length in clips]


@pytest.mark.parametrize(("lengths", "checkpointing"), ctc_law.ACTIVATIONS)
def test_activations_are_fitted_again_to_what_is_declared(
    lengths: str, checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wide vocabulary makes the loss's backward the highest moment of a step, a narrow one its forward.
    for moment, vocabulary in enumerate((256, 32)):
        declared = ctc_law.ACTIVATIONS[lengths, checkpointing][moment]
        configuration = PLAIN.but(lengths=lengths, checkpointing=checkpointing, vocabulary=vocabulary)
        points = []
        for batch in (8, 12, 16):
            workload = replace(EMULATED, train_batch=batch)
            monkeypatch.setattr(ctc_memory, "EMULATED", workload)
            step = list(ctc_law.training(configuration, workload))[moment]
            known = sum(term.bytes for term in step.terms if term.provenance == "closed form")
            points.append((_frames(lengths) * batch, _metered(configuration).peak_of(TRAIN_STEP) - known))
        line = laws.fit(points)
        assert line.worst < 0.002
        assert line.slope == pytest.approx(declared.slope, rel=0.005)
        assert line.rest == pytest.approx(declared.rest, abs=2000)


def _frames(lengths: str) -> int:
    return wav2vec2.frames(EMULATED.longest(lengths)[0])


def test_a_run_that_ends_before_its_peak_has_no_law() -> None:
    with pytest.raises(ValueError, match="ends before its peak"):
        law(FAILURE.reported.but(call_batch=2))


MIB = 1 << 20
NOISE = (32 + 20) * MIB
"""A workspace of cuBLAS and a segment of CUDA's caching allocator: what a real device takes on top of the law."""


def test_the_workload_for_a_gpu_leaves_a_cap_twice_above_what_passes_and_twice_below_what_fails() -> None:
    peaks = {
        name: ctc_law.law(configuration, evaluates=configuration != PLAIN, workload=ON_CUDA).bytes
        for name, configuration in (("training", PLAIN), ("reported", FAILURE.reported))
    }
    capacity = math.sqrt(peaks["training"] * peaks["reported"])
    assert 2 * (peaks["training"] + NOISE) <= capacity <= (peaks["reported"] - NOISE) / 2
    assert peaks["training"] > 4 * NOISE
    assert peaks["reported"] < 6 << 30, "a card of 8 GiB has to hold the reported run"
    # Ragged clips are twice as long, and have to train under the same cap, as a claim is judged on them.
    ragged = ctc_law.law(PLAIN.but(lengths="ragged"), evaluates=False, workload=ON_CUDA).bytes
    assert ragged + NOISE < capacity


@pytest.mark.parametrize("configuration", [PLAIN, FAILURE.reported], ids=["training", "reported"])
def test_the_law_holds_for_a_smaller_run_with_logits_as_wide_as_on_a_gpu(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = replace(ON_CUDA, train_set=128, small_set=8, train_batch=8, steps=5)
    monkeypatch.setattr(ctc_memory, "EMULATED", workload)
    expected = ctc_law.law(configuration, evaluates=configuration != PLAIN, workload=workload)
    assert expected.bytes == pytest.approx(_measured(configuration), rel=0.02)
