"""A wav2vec2 of a few thousand parameters with a CTC head, its processor, and data and metrics as scripts have them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from repro.speech.clips import SAMPLING_RATE, speech_set
from repro.speech.metrics import word_error_rate

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

PAD, UNKNOWN, BETWEEN_WORDS = "[PAD]", "[UNK]", "|"
CHARACTERS = (*"abcdefghijklmnopqrstuvwxyz", BETWEEN_WORDS, UNKNOWN, PAD)
CONV_STRIDE = (10, 8)
IGNORED = -100


def frames(samples: int) -> int:
    """Return how many frames of logits the model makes of a sound of so many samples."""
    for stride in CONV_STRIDE:
        # Kernels are as wide as their strides, so that frames do not overlap.
        samples = (samples - stride) // stride + 1
    return samples


def build(*, layers: int = 1, width: int = 16, vocabulary: int = len(CHARACTERS), seed: int = 0) -> Wav2Vec2ForCTC:
    """Build a wav2vec2 for CTC with random weights, in float32 on the CPU, in training mode.

    `vocabulary` is the width of the logits, at least the tokenizer's; the excess are characters that no clip has.
    Dropout, LayerDrop and SpecAugment are off, so that an outcome is never a coin toss. Raises ValueError for a
    vocabulary too small for the tokenizer.
    """
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    if vocabulary < len(CHARACTERS):
        raise ValueError(f"the tokenizer has {len(CHARACTERS)} characters, the model only {vocabulary}")
    config = Wav2Vec2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        feat_extract_norm="layer",
        conv_dim=(8,) * len(CONV_STRIDE),
        conv_stride=CONV_STRIDE,
        conv_kernel=CONV_STRIDE,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        hidden_dropout=0.0,
        activation_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        apply_spec_augment=False,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
        pad_token_id=CHARACTERS.index(PAD),
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(seed)
    return Wav2Vec2ForCTC(config).train()


@lru_cache(maxsize=1)
def feature_extractor() -> Wav2Vec2FeatureExtractor:
    """Return the feature extractor: zero mean and unit variance, with an attention mask."""
    from transformers import Wav2Vec2FeatureExtractor

    return Wav2Vec2FeatureExtractor(sampling_rate=SAMPLING_RATE, return_attention_mask=True)


@lru_cache(maxsize=1)
def tokenizer() -> Wav2Vec2CTCTokenizer:
    """Return the character tokenizer; its padding token is the blank of the CTC loss."""
    from transformers import Wav2Vec2CTCTokenizer

    with tempfile.TemporaryDirectory(prefix="repro-") as directory:
        vocabulary = Path(directory) / "vocab.json"
        vocabulary.write_text(json.dumps({character: index for index, character in enumerate(CHARACTERS)}))
        return Wav2Vec2CTCTokenizer(
            str(vocabulary),
            unk_token=UNKNOWN,
            pad_token=PAD,
            word_delimiter_token=BETWEEN_WORDS,
            bos_token=None,
            eos_token=None,
        )


@lru_cache(maxsize=16)
def prepared(size: int, seed: int = 0, shortest: int = 2, longest: int = 5) -> Dataset:
    """Return the speech set as a script prepares it: `input_values` (samples) and `labels` (character ids)."""

    def prepare(row: Mapping[str, Any]) -> dict[str, Any]:
        values = feature_extractor()(row["audio"], sampling_rate=SAMPLING_RATE).input_values[0]
        return {"input_values": values, "labels": tokenizer()(row["sentence"]).input_ids}

    source = speech_set(size, seed, shortest, longest)
    return source.map(prepare, remove_columns=source.column_names)


class Collator:
    """Pads sounds and labels each to the longest of the batch; labels with -100, which the loss leaves out."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return `input_values` and `attention_mask` (batch, samples) and `labels` (batch, longest)."""
        sounds = [{"input_values": np.asarray(row["input_values"], dtype=np.float32)} for row in rows]
        batch = dict(feature_extractor().pad(sounds, padding=True, return_tensors="pt"))
        padded = tokenizer().pad([{"input_ids": row["labels"]} for row in rows], return_tensors="pt")
        batch["labels"] = padded["input_ids"].masked_fill(padded["attention_mask"].ne(1), IGNORED)
        return batch


def character_ids(predictions: Any) -> Any:
    """Return the most likely characters (examples, frames) of whatever an evaluation kept.

    That is logits or characters already, alone or followed by labels, in numpy or still on the device.
    """
    if isinstance(predictions, tuple):
        predictions = predictions[0]
    return _on_host(predictions.argmax(-1) if predictions.ndim == 3 else predictions)


def _on_host(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values


def texts(predictions: Any, label_ids: Any) -> tuple[list[str], list[str]]:
    """Return references and hypotheses of some examples: padding restored where -100 stood for it, then decoded."""
    words, pad = tokenizer(), tokenizer().pad_token_id
    label_ids = _on_host(label_ids)
    hypotheses = np.where(predictions == IGNORED, pad, predictions)
    references = np.where(label_ids == IGNORED, pad, label_ids)
    return words.batch_decode(references, group_tokens=False), words.batch_decode(hypotheses)


class ComputeMetrics:
    """What scripts give as `compute_metrics`: the word error rate in percent, as `wer`.

    Called with a whole evaluation; with `eval_do_concat_batches=False` that is a list of batches. With
    `batch_eval_metrics=True` it is called batch by batch, the last time with `compute_result=True`. `digest` is of what
    was transcribed last: a rate may be the same by chance.
    """

    def __init__(self) -> None:
        self.digest = ""
        self.references: list[str] = []
        self.hypotheses: list[str] = []

    def __call__(self, prediction: Any, compute_result: bool = True) -> dict[str, float]:
        """Take in predictions (logits or characters) and labels, and return the rate once all have been seen."""
        kept, labels = prediction.predictions, prediction.label_ids
        batches = zip(kept, labels, strict=True) if isinstance(labels, list) else [(kept, labels)]
        for predictions, label_ids in batches:
            references, hypotheses = texts(character_ids(predictions), label_ids)
            self.references += references
            self.hypotheses += hypotheses
        if not compute_result:
            return {}
        transcriptions = "\n".join((*self.references, *self.hypotheses))
        self.digest = hashlib.sha256(transcriptions.encode()).hexdigest()[:16]
        rate = word_error_rate(self.references, self.hypotheses)
        self.references, self.hypotheses = [], []
        return {"wer": rate}
