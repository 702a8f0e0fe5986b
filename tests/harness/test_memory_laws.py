"""The laws against the meter, over sizes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repro.memory import laws
from repro.memory.evaluation_law import Evaluation, Wav2Vec2Sizes, evaluation_peak
from repro.memory.meter import meter
from repro.memory.trainer_phases import EVALUATION_BATCH, GATHER, TRAIN_STEP, phases_of

from .memory_workload import LABELS, model, quietly, trainer


@pytest.fixture(scope="module", autouse=True)
def _leave_what_is_imported_alone() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


sizes = st.builds(
    Wav2Vec2Sizes,
    vocabulary=st.sampled_from([16, 64, 256, 512]),
    hidden=st.sampled_from([16, 32]),
    layers=st.integers(1, 2),
    intermediate=st.sampled_from([32, 64, 256]),
    channels=st.sampled_from([16, 32, 64]).map(lambda width: (width,) * 7),
    position_kernel=st.just(16),
    position_groups=st.just(2),
    norm=st.sampled_from(["group", "layer"]),
)
SHORTEST, LONGEST = 2_000, 24_000
clip = st.tuples(st.integers(SHORTEST, LONGEST), st.integers(1, 2 * LABELS))
clips = st.one_of(
    st.builds(lambda count, clip: [clip] * count, st.integers(1, 12), clip), st.lists(clip, min_size=1, max_size=12)
)


@st.composite
def _evaluations(draw: st.DrawFn) -> Evaluation:
    drawn = draw(clips)
    return Evaluation(
        model=draw(sizes),
        samples=tuple(samples for samples, _ in drawn),
        labels=tuple(labels for _, labels in drawn),
        batch=draw(st.sampled_from([1, 2, 3, 8])),
        keeps=draw(st.sampled_from(["logits", "logits", "argmax", "argmax and labels", "nothing"])),
        accumulation=draw(st.sampled_from([None, None, 1, 2, 4, 15])),
        concatenates=draw(st.sampled_from([True, True, False])),
        sees_temporaries=draw(st.booleans()),
        attention_mask=draw(st.booleans()),
    )


evaluations = _evaluations()


def measured(run: Evaluation, to: Path) -> int:
    """Meter an evaluation as the law describes it."""
    net = model(
        vocabulary=run.model.vocabulary,
        hidden=run.model.hidden,
        layers=run.model.layers,
        intermediate=run.model.intermediate,
        channels=run.model.channels[0],
        norm=run.model.norm,
    )
    with meter(source="allocator" if run.sees_temporaries else "ledger") as m:
        made = trainer(
            net,
            run.samples,
            to,
            keeps=run.keeps,
            batch=run.batch,
            labels=run.labels,
            mask=run.attention_mask,
            eval_accumulation_steps=run.accumulation,
            eval_do_concat_batches=run.concatenates,
        )
        with phases_of(made, m):
            quietly(made.evaluate)
    assert m.report.peak_of(EVALUATION_BATCH) > 0  # an evaluation that never ran has a wonderfully low peak
    assert m.report.peak_of(GATHER) == m.peak
    return m.peak


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=evaluations)
def test_the_evaluations_law_is_within_two_percent(run: Evaluation, tmp_path: Path) -> None:
    law = evaluation_peak(run)
    assert law.bytes == pytest.approx(measured(run, tmp_path), rel=0.02), f"{run}\n{law}"


def test_without_offloading_the_peak_grows_by_two_copies_a_batch_and_with_it_not_at_all() -> None:
    shape = Wav2Vec2Sizes(512, 16, 1, 32, (8,) * 7)
    logits = laws.rounded(2 * shape.frames(16_000)[-1] * 512 * 4)

    def peak(batches: int, accumulation: int | None) -> int:
        return evaluation_peak(Evaluation(shape, (16_000,) * 2 * batches, 2, LABELS, accumulation=accumulation)).bytes

    growth = peak(41, None) - peak(40, None)
    assert growth == pytest.approx(2 * logits, abs=2 * laws.BLOCK)
    assert peak(40, 1) == peak(41, 1)
    assert peak(40, 1) < peak(40, 4) < peak(40, 15) < peak(40, 80) == peak(40, None)


def test_training_state_is_exact_to_the_byte() -> None:
    shape = Wav2Vec2Sizes(32, 32, 2, 64, (16,) * 7, position_kernel=16, position_groups=2)
    with meter() as m:
        net = model()
        shapes = [tuple(parameter.shape) for parameter in net.parameters()]
        assert sorted(shapes) == sorted(shape.shapes())
        state = laws.training_state(shapes)
        assert m.live == state.terms[0].bytes
        optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        assert m.live == state.terms[0].bytes + state.terms[1].bytes
        optimizer.step()
        assert m.live == state.bytes


def test_activations_grow_along_a_line_that_is_fitted_and_says_so(tmp_path: Path) -> None:
    points = []
    frames = []
    for length in (8_000, 12_000, 16_000, 24_000):
        with meter(source="ledger") as m:
            made = trainer(model(), (length,) * 4, tmp_path, max_steps=2)
            with phases_of(made, m):
                quietly(made.train)
        frames.append(Wav2Vec2Sizes(32, 32, 2, 64, (16,) * 7).frames(length)[-1])
        points.append((2 * frames[-1], m.report.peak_of(TRAIN_STEP)))
    line = laws.fit(points)
    assert line.slope > 0
    assert line.worst < 0.02
    term = line.term(frames[0], 2)
    assert term.provenance == "fitted"
    assert "(fitted)" in str(laws.Law("in a training step", (term,)))


def test_senseless_sizes_are_refused() -> None:
    shape = Wav2Vec2Sizes(32, 32, 2, 64, (16,) * 7)
    with pytest.raises(ValueError, match="needs clips"):
        Evaluation(shape, (), 2, 5)
    with pytest.raises(ValueError, match="accumulation"):
        Evaluation(shape, (16_000,), 2, 5, accumulation=0)
    with pytest.raises(ValueError, match="too short"):
        Evaluation(shape, (100,), 2, 5)
    with pytest.raises(ValueError, match="positive"):
        Wav2Vec2Sizes(0, 32, 2, 64, (16,) * 7)
    with pytest.raises(ValueError, match="three sizes"):
        laws.fit([(1, 1), (2, 2)])


@given(evaluations)
def test_a_law_is_the_sum_of_its_terms_and_prints_each(run: Evaluation) -> None:
    law = evaluation_peak(run)
    text = str(law)
    assert law.bytes == sum(term.bytes for term in law.terms)
    assert f"{law.bytes:,}" in text
    assert all(term.name in text and f"{term.bytes:,}" in text for term in law.terms)
