"""Published speech models as data: what their configuration files say, and how many parameters their authors count.

Only what differs from the defaults of the configuration class is named. Sources: the `config.json` of each model on its
hub page, and the papers' own tables for the parameter counts (arXiv 2212.04356, 2006.11477, 2111.09296, 2106.07447,
2110.13900, 2410.15608). No torch here: the desk lists them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Input = Literal["mel", "wave"]


@dataclass(frozen=True)
class Architecture:
    """One published size. `parameters` is the published, rounded count; `stride` is input samples per output frame.

    `label_limit` is the longest label sequence that the model takes, 0 for no limit. `mask` tells whether the published
    feature extractor gives an attention mask, `attentions` which implementations the family has beside eager.
    """

    name: str
    model_class: str
    config_class: str
    config: Mapping[str, Any]
    parameters: int
    input: Input
    mask: bool = False
    label_limit: int = 0
    attentions: tuple[str, ...] = ("sdpa", "eager")
    kind: Literal["seq2seq", "ctc"] = "ctc"


def _whisper(
    name: str, width: int, layers: int, heads: int, parameters: int, *, decoder_layers: int = 0, v3: bool = False
) -> Architecture:
    config = {
        "d_model": width,
        "encoder_layers": layers,
        "decoder_layers": decoder_layers or layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
        "num_mel_bins": 128 if v3 else 80,
        "vocab_size": 51866 if v3 else 51865,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    }
    return Architecture(
        f"whisper-{name}",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        config,
        parameters,
        "mel",
        label_limit=448,
        kind="seq2seq",
    )


_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_GROUP = {"feat_extract_norm": "group", "conv_bias": False, "do_stable_layer_norm": False}
_LAYER = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
_DROPOUT = {
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "feat_proj_dropout": 0.1,
    "final_dropout": 0.1,
    "vocab_size": 32,
    "ctc_loss_reduction": "mean",
}
_QUIET = _DROPOUT | {"activation_dropout": 0.0, "feat_proj_dropout": 0.0, "final_dropout": 0.0}


def _ctc(name: str, family: str, config: Mapping[str, Any], parameters: int, *, mask: bool = False) -> Architecture:
    attentions = ("eager",) if family == "WavLM" else ("sdpa", "eager")
    return Architecture(
        name, f"{family}ForCTC", f"{family}Config", config, parameters, "wave", mask=mask, attentions=attentions
    )


def _moonshine(name: str, width: int, layers: int, parameters: int) -> Architecture:
    config = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "encoder_num_hidden_layers": layers,
        "decoder_num_hidden_layers": layers,
        "encoder_num_attention_heads": 8,
        "decoder_num_attention_heads": 8,
        "encoder_num_key_value_heads": 8,
        "decoder_num_key_value_heads": 8,
        "vocab_size": 32768,
        "max_position_embeddings": 194,
        "pad_token_id": 2,
        "partial_rotary_factor": 0.9 if name == "tiny" else 0.62,
    }
    return Architecture(
        f"moonshine-{name}",
        "MoonshineForConditionalGeneration",
        "MoonshineConfig",
        config,
        parameters,
        "wave",
        label_limit=194,
        kind="seq2seq",
    )


def _wide(width: int) -> dict[str, Any]:
    return {"hidden_size": width, "num_hidden_layers": 48, "num_attention_heads": 16, "intermediate_size": 4 * width}


_ALL = (
    _whisper("tiny", 384, 4, 6, 39_000_000),
    _whisper("base", 512, 6, 8, 74_000_000),
    _whisper("small", 768, 12, 12, 244_000_000),
    _whisper("medium", 1024, 24, 16, 769_000_000),
    _whisper("large-v2", 1280, 32, 20, 1_550_000_000),
    _whisper("large-v3", 1280, 32, 20, 1_550_000_000, v3=True),
    _whisper("large-v3-turbo", 1280, 32, 20, 809_000_000, decoder_layers=4, v3=True),
    _ctc("wav2vec2-base", "Wav2Vec2", _BASE | _GROUP | _DROPOUT, 95_000_000),
    _ctc("wav2vec2-large", "Wav2Vec2", _LARGE | _GROUP | _DROPOUT, 317_000_000),
    _ctc("wav2vec2-large-lv60", "Wav2Vec2", _LARGE | _LAYER | _DROPOUT, 317_000_000, mask=True),
    _ctc("wav2vec2-xls-r-300m", "Wav2Vec2", _LARGE | _LAYER | _QUIET, 317_000_000, mask=True),
    _ctc("wav2vec2-xls-r-1b", "Wav2Vec2", _wide(1280) | _LAYER | _QUIET, 965_000_000, mask=True),
    _ctc("wav2vec2-xls-r-2b", "Wav2Vec2", _wide(1920) | _LAYER | _QUIET, 2_162_000_000, mask=True),
    _ctc("hubert-base", "Hubert", _BASE | _GROUP | _DROPOUT, 95_000_000),
    _ctc("hubert-large", "Hubert", _LARGE | _LAYER | _QUIET, 317_000_000, mask=True),
    _ctc("wavlm-base", "WavLM", _BASE | _GROUP | _QUIET, 94_700_000),
    _ctc("wavlm-large", "WavLM", _LARGE | _LAYER | _QUIET | {"conv_bias": False}, 316_620_000, mask=True),
    _moonshine("tiny", 288, 6, 27_100_000),
    _moonshine("base", 416, 8, 61_500_000),
)
ARCHITECTURES: Mapping[str, Architecture] = {each.name: each for each in _ALL}


def find(name: str) -> Architecture:
    """Return a published size by its name, with or without the owner before a slash.

    Raises LookupError, naming what is nearest, for one that is not known.
    """
    key = name.rsplit("/", 1)[-1].strip().lower().replace("_", "-")
    if key in ARCHITECTURES:
        return ARCHITECTURES[key]
    near = difflib.get_close_matches(key, ARCHITECTURES, n=3, cutoff=0.4) or sorted(ARCHITECTURES)
    raise LookupError(f"no published size is known as {name!r}; the nearest are: {', '.join(near)}")
