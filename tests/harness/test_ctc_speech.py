"""The tiny wav2vec2: its frames, its labels, and a metric that padding does not get into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.speech import wav2vec2
from repro.speech.clips import WORDS


@settings(max_examples=10, deadline=None)
@given(samples=st.integers(400, 6000))
def test_frames_are_those_that_the_model_makes(samples: int) -> None:
    model = wav2vec2.build().eval()
    with torch.no_grad():
        logits = model(torch.randn(1, samples)).logits
    assert logits.shape[1] == wav2vec2.frames(samples)


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    with pytest.raises(ValueError, match="29 characters, the model only 5"):
        wav2vec2.build(vocabulary=5)


def test_labels_are_padded_with_what_the_loss_leaves_out_and_decode_to_the_sentences() -> None:
    rows = wav2vec2.prepared(8)
    labels = wav2vec2.Collator()(list(rows))["labels"].numpy()
    assert (labels == wav2vec2.IGNORED).any()
    assert [len(row["labels"]) for row in rows] == [(each != wav2vec2.IGNORED).sum() for each in labels]
    references, _ = wav2vec2.texts(labels, labels)
    assert all(set(reference.split()) <= set(WORDS) for reference in references)


def _spelled(text: str) -> Any:
    """Return characters as a CTC model would put them: a blank between, so that doubled letters survive."""
    blank = wav2vec2.CHARACTERS.index(wav2vec2.PAD)
    ids = [wav2vec2.CHARACTERS.index("|" if character == " " else character) for character in text]
    return np.array([each for index in ids for each in (index, blank)])


def _logits(ids: Any) -> Any:
    return np.eye(len(wav2vec2.CHARACTERS), dtype=np.float32)[ids]


@pytest.mark.parametrize("shape", ["logits", "characters", "with labels", "batches", "by batch"])
def test_the_rate_is_the_same_for_whatever_an_evaluation_kept(shape: str) -> None:
    labels = np.stack([wav2vec2.CHARACTERS.index(c) * np.ones(1, int) for c in "ab"])
    ids = np.stack([_spelled("a"), _spelled("c")])
    compute = wav2vec2.ComputeMetrics()
    kept = {"logits": _logits(ids), "with labels": (ids, labels)}.get(shape, ids)
    if shape == "batches":
        prediction = SimpleNamespace(predictions=[ids[:1], ids[1:]], label_ids=[labels[:1], labels[1:]])
        assert compute(prediction) == {"wer": 50.0}
    elif shape == "by batch":
        first = SimpleNamespace(predictions=torch.tensor(ids[:1]), label_ids=torch.tensor(labels[:1]))
        last = SimpleNamespace(predictions=torch.tensor(ids[1:]), label_ids=torch.tensor(labels[1:]))
        assert compute(first, compute_result=False) == {}
        assert compute(last, compute_result=True) == {"wer": 50.0}
    else:
        assert compute(SimpleNamespace(predictions=kept, label_ids=labels)) == {"wer": 50.0}
    assert compute.references == compute.hypotheses == []


def test_the_digest_tells_transcriptions_apart_that_have_the_same_rate() -> None:
    labels = np.array([[0]])
    one, other = wav2vec2.ComputeMetrics(), wav2vec2.ComputeMetrics()
    rates = [
        compute(SimpleNamespace(predictions=np.array([[wrong]]), label_ids=labels))
        for compute, wrong in ((one, 1), (other, 2))
    ]
    assert rates[0] == rates[1]
    assert one.digest != other.digest
