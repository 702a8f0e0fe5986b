"""Speech encoders of a few thousand parameters with the head that scripts train, one of each family; and their data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from repro.speech.clips import WORDS, speech_set

if TYPE_CHECKING:
    from datasets import Dataset

BLANK, START, END = len(WORDS), len(WORDS) + 1, len(WORDS) + 2
VOCABULARY = len(WORDS) + 3
WIDTH, STRIDES = 16, (10, 8)
WORDS_PER_CLIP = 3
"""All clips are of one length, so that no family needs padding, which they mark differently."""

_STILL = {
    "hidden_dropout": 0.0,
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
}
"""Dropout, LayerDrop and SpecAugment are off, so that an outcome is never a coin toss."""

_CONVOLUTIONS = {"conv_dim": (8, 8), "conv_stride": STRIDES, "conv_kernel": STRIDES}
_POSITIONS = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
_HEAD = {"vocab_size": VOCABULARY, "pad_token_id": BLANK, "bos_token_id": START, "eos_token_id": END}


class NotInThisReleaseError(LookupError):
    """This release of the library does not know the family."""


def _transformer(layers: int) -> dict[str, Any]:
    return {
        "hidden_size": WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 2 * WIDTH,
    }


def _like_wav2vec2(layers: int) -> dict[str, Any]:
    # With a norm in each convolution the gradient of none of them is tiny, as the norm over a whole clip makes it.
    own = {"feat_extract_norm": "layer", "ctc_loss_reduction": "mean", "ctc_zero_infinity": True}
    return {**_transformer(layers), **_CONVOLUTIONS, **_POSITIONS, **_HEAD, **_STILL, **own}


def _sew_d(layers: int) -> dict[str, Any]:
    own = {"squeeze_factor": 2, "position_buckets": 4, "max_position_embeddings": 16, "pooler_hidden_size": WIDTH}
    return {**_like_wav2vec2(layers), "feat_extract_norm": "group", **own}


def _speecht5(layers: int) -> dict[str, Any]:
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_max_relative_position": 8}
    drops = {"positional_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    own = {"feat_extract_norm": "layer", "decoder_start_token_id": START, "max_text_positions": 32}
    return {"hidden_size": WIDTH, **sizes, **heads, **_CONVOLUTIONS, **_POSITIONS, **_HEAD, **_STILL, **drops, **own}


def _omniasr(layers: int) -> dict[str, Any]:
    still = dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "layerdrop"), 0.0)
    audio = {**_transformer(layers), **_CONVOLUTIONS, **_POSITIONS, **still}
    return {"vocab_size": VOCABULARY, "pad_token_id": BLANK, "blank_token_id": BLANK, "audio_config": audio}


def _whisper(layers: int) -> dict[str, Any]:
    sizes = {"encoder_layers": layers, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    drops = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    layerdrop = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    own = {"d_model": WIDTH, "num_mel_bins": 8, "max_source_positions": 50, "num_labels": len(WORDS)}
    return {**sizes, **heads, **drops, **layerdrop, **own, "classifier_proj_size": WIDTH, "apply_spec_augment": False}


_FAMILIES: Mapping[str, tuple[str, str, Callable[[int], dict[str, Any]]]] = {
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2ForCTC", _like_wav2vec2),
    "hubert": ("HubertConfig", "HubertForCTC", _like_wav2vec2),
    "wavlm": ("WavLMConfig", "WavLMForCTC", _like_wav2vec2),
    "sew-d": ("SEWDConfig", "SEWDForCTC", _sew_d),
    "speecht5": ("SpeechT5Config", "SpeechT5ForSpeechToText", _speecht5),
    "omniasr": ("OmniASRCTCConfig", "OmniASRForCTC", _omniasr),
    "whisper": ("WhisperConfig", "WhisperForAudioClassification", _whisper),
}

FAMILIES = tuple(_FAMILIES)


def build(family: str, *, layers: int = 2, seed: int = 0) -> Any:
    """Build a model of a family with random weights, in float32 on the CPU, in training mode.

    `layers` are those of the encoder (and of SpeechT5's decoder). Raises KeyError for an unknown family and
    NotInThisReleaseError for one that this release does not have.
    """
    import transformers

    config_name, model_name, settings = _FAMILIES[family]
    config_class, model_class = (getattr(transformers, name, None) for name in (config_name, model_name))
    if config_class is None or model_class is None:
        raise NotInThisReleaseError(f"transformers {transformers.__version__} has no {model_name}")
    torch.manual_seed(seed)
    return model_class(config_class(**settings(layers))).train()


@lru_cache(maxsize=16)
def prepared(family: str, size: int, seed: int = 0) -> Dataset:
    """Return clips as a script prepares them for a family.

    That is `input_values` (samples; for OmniASR one channel of them, and a mask), or for Whisper `input_features` (mel
    bins, frames); and `labels`: token ids, one per word, or for Whisper's classifier the class of the first word.
    """
    source = speech_set(size, seed, WORDS_PER_CLIP, WORDS_PER_CLIP)

    def prepare(row: Mapping[str, Any]) -> dict[str, Any]:
        ids = [WORDS.index(word) for word in row["sentence"].split()]
        if family == "whisper":
            from repro.speech.whisper import feature_extractor

            features = feature_extractor()(row["audio"], sampling_rate=16_000).input_features[0]
            return {"input_features": features, "labels": ids[0]}
        if family == "omniasr":
            # Its loss asks for a mask, even where nothing is padded.
            return {"input_values": [row["audio"]], "padding_mask": [1.0] * len(row["audio"]), "labels": ids}
        return {"input_values": row["audio"], "labels": [*ids, END] if family == "speecht5" else ids}

    return source.map(prepare, remove_columns=source.column_names)


def collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a batch: sounds (batch, ...) as prepared, and `labels` (batch, length) or, of classes, (batch,)."""
    return {
        name: torch.tensor([row[name] for row in rows], dtype=torch.long if name == "labels" else torch.float32)
        for name in rows[0]
    }


def batch(family: str, *, size: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return one batch of clips, for trials of the bare model."""
    return collate(list(prepared(family, size, seed)))
