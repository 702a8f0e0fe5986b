"""A Whisper of a few thousand parameters, its feature extractor and tokenizer, and data as scripts prepare it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from repro.speech.clips import SAMPLING_RATE, WORDS, speech_set
from repro.speech.metrics import word_error_rate

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor, WhisperForConditionalGeneration

PAD, START, END = "<pad>", "<start>", "<end>"
MEL_BINS = 8
FRAMES = 100
"""Mel frames of a clip: one second, at a hop of 160 samples."""


def build(
    *,
    encoder_layers: int = 2,
    decoder_layers: int = 2,
    width: int = 16,
    frames: int = FRAMES,
    attention: str = "sdpa",
    seed: int = 0,
) -> WhisperForConditionalGeneration:
    """Build a Whisper with random weights, in float32 on the CPU, in training mode.

    Dropout, LayerDrop and SpecAugment are off, so that an outcome is never a coin toss. `frames` is what the encoder
    takes (mel frames; even), `width` the model's dimension (even).
    """
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    vocabulary = len(WORDS) + 3
    config = WhisperConfig(
        vocab_size=vocabulary,
        num_mel_bins=MEL_BINS,
        d_model=width,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        max_source_positions=frames // 2,
        max_target_positions=16,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        apply_spec_augment=False,
        pad_token_id=vocabulary - 3,
        bos_token_id=vocabulary - 2,
        decoder_start_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    config._attn_implementation = attention
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config)
    model.generation_config.forced_decoder_ids = None
    return model.train()


def batch(*, size: int = 2, frames: int = FRAMES, labels: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random features (size, mel bins, frames) and labels (size, labels), for trials of the bare model."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_features": torch.randn(size, MEL_BINS, frames, generator=generator),
        "labels": torch.randint(0, len(WORDS), (size, labels), generator=generator),
    }


@lru_cache(maxsize=1)
def feature_extractor() -> WhisperFeatureExtractor:
    """Return a real Whisper feature extractor for clips of at most one second."""
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=MEL_BINS, sampling_rate=SAMPLING_RATE, chunk_length=1)


@lru_cache(maxsize=1)
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word, and the tokens for padding, start and end."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    tokens = Tokenizer(WordLevel({word: index for index, word in enumerate((*WORDS, PAD, START, END))}, unk_token=PAD))
    tokens.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token=PAD, bos_token=START, eos_token=END)


@lru_cache(maxsize=8)
def prepared(size: int, seed: int = 0) -> Dataset:
    """Return the speech set as a script prepares it: `input_features` (mel bins, frames) and `labels` (token ids)."""

    def prepare(row: Mapping[str, Any]) -> dict[str, Any]:
        features = feature_extractor()(row["audio"], sampling_rate=SAMPLING_RATE).input_features[0]
        ids = tokenizer()(row["sentence"]).input_ids
        return {"input_features": features, "labels": [tokenizer().bos_token_id, *ids, tokenizer().eos_token_id]}

    source = speech_set(size, seed)
    return source.map(prepare, remove_columns=source.column_names)


@dataclass(frozen=True)
class Collator:
    """Pads labels with -100 and drops the start token that the model puts there itself, as fine-tuning scripts do."""

    decoder_start_token_id: int

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return `input_features` (batch, mel bins, frames) and `labels` (batch, longest)."""
        features = feature_extractor().pad([{"input_features": r["input_features"]} for r in rows], return_tensors="pt")
        padded = tokenizer().pad([{"input_ids": row["labels"]} for row in rows], return_tensors="pt")
        labels = padded["input_ids"].masked_fill(padded["attention_mask"].ne(1), -100)
        if (labels[:, 0] == self.decoder_start_token_id).all():
            labels = labels[:, 1:]
        return {"input_features": features["input_features"], "labels": labels}


def compute_metrics() -> Callable[[Any], dict[str, float]]:
    """Return the usual function for `compute_metrics`: decodes, and gives the word error rate in percent as `wer`."""

    def compute(prediction: Any) -> dict[str, float]:
        words, pad = tokenizer(), tokenizer().pad_token_id
        predicted = prediction.predictions
        if isinstance(predicted, tuple):
            predicted = predicted[0]
        if predicted.ndim == 3:
            predicted = predicted.argmax(-1)
        label_ids = prediction.label_ids.copy()
        label_ids[label_ids == -100] = pad
        predicted = predicted.copy()
        predicted[predicted < 0] = pad
        hypotheses = words.batch_decode(predicted, skip_special_tokens=True)
        references = words.batch_decode(label_ids, skip_special_tokens=True)
        return {"wer": word_error_rate(references, hypotheses)}

    return compute
