"""The smallest configuration that a configuration class allows: its defaults, scaled down by the names of the fields.

Widths all become the same number, so that what had to be equal stays equal; the levels differ in how much they dare.
A family that no level suits has a recipe (`repro.census.recipes`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.census import drift, recipes

LEVELS = ("small", "wide", "shallow")
"""`small`: widths, heads and layers; `wide`: the same with heads of the usual width, for code that counts on it;
`shallow`: layers, vocabulary and positions only, with the widths of the original."""

# By level: width, heads, groups of key-value heads, width of a head.
_SIZES = {"small": (64, 4, 2, 16), "wide": (256, 2, 1, 128)}
LAYERS, VOCABULARY, POSITIONS = 2, 128, 512
EXPERTS, EXPERTS_USED = 4, 2
FILTERS = 8

_LAYERS = re.compile(r"(^|_)(n|num)_(\w+_)?(layers?|blocks)$|_layers$|^(n_layer|num_layers|depth|num_blocks)$|_depth$")
_NOT_LAYERS = re.compile(
    r"feat_extract|conv_pos|_every|interval|^num_adapter|feature_layers?$|kv_shared|skip|mtp|nextn|dense_layers|first_"
)
_HEADS = re.compile(r"(^|_)(n_head|heads|num_heads|attention_heads|n_heads)$")
_GROUPS = re.compile(r"key_value_heads$|kv_heads$|num_query_groups$|multi_query_group_num$")
_HEAD_WIDTH = re.compile(r"head_dim$|^d_kv$|kv_channels$|head_size$|^qk_(rope|nope)_head_dim$|size_per_head$")
_WIDTH = re.compile(
    r"(^|_)(hidden_size|d_model|d_embed|embed_dim|n_embd|n_inner|d_ff|dim|ffn_dim|hidden_dim|embedding_size|"
    r"intermediate_size|ffn_hidden_size|inner_dim|lora_rank|rank|width|channels|feature_size|d_inner)$|"
    r"(hidden|intermediate|embed|embedding|feature|ffn|proj|projection|output)_(size|dim|channels)$|_proj_size$"
)
_NOT_WIDTH = re.compile(
    r"(patch|kernel|window|image|crop|tile|chunk|block|batch|group|grid|shift|pool|downsample|stem|num_|in_)\w*_?(size|dim|channels)?$"
    r"|^num_|_channels$(?<=num_channels)|mel|input_feat|conv_|rotary|rope|time_step|state|type_vocab|sampl|codebook"
)
_VOCABULARY = re.compile(r"vocab(ulary)?_size")
_TOKEN = re.compile(r"_token_(id|index)s?$|_token_ids$|^(pad|bos|eos|sep|cls|mask)_id$|(?<!per)_token$")
_PLACEHOLDER = re.compile(r"^(image|video|audio)_token_(id|index)$")
_UNSEEN = 10**6
"""A token id beyond every vocabulary, from which placeholders without an id of their own are numbered."""
_POSITIONS = re.compile(r"position_embeddings$|_positions$|^n_positions$|^n_ctx$|max_seq_len\w*$|^max_sequence_length$")
_PINNED_TO_ZERO = re.compile(
    r"dropout|drop_path|dropout_rate|layerdrop|stochastic_depth|mask_(time|feature)_prob|pdrop$|_drop_?(rate|prob)$|jitter|drop_rate$"
)


@dataclass
class Shrinker:
    """Scales one tree of configurations down. Token ids are mapped once for the whole tree, so that they agree."""

    level: str
    tokens: dict[int, int] = field(default_factory=dict)

    @property
    def _widths(self) -> tuple[int, int, int, int]:
        return _SIZES[self.level]

    def overrides(self, config: Any) -> dict[str, Any]:
        """Return the constructor arguments that make a configuration of this class small, and free of randomness."""
        if self.level in _SIZES and getattr(config, "model_type", "") in recipes.KEEP_WIDTHS:
            return Shrinker("shallow", self.tokens).overrides(config)
        changed: dict[str, Any] = {}
        values = _fields(config)
        for name, value in values.items():
            if isinstance(value, drift.config_types()):
                changed[name] = {**_set_apart(value), "model_type": value.model_type, **self.overrides(value)}
            elif value is None and _PLACEHOLDER.search(name):
                changed[name] = self._token(_UNSEEN + len(self.tokens))
            elif value is None and name == "head_dim" and self.level in _SIZES:
                changed[name] = self._widths[3]
            elif isinstance(value, bool) or value is None:
                continue
            elif _PINNED_TO_ZERO.search(name) and isinstance(value, (int, float)):
                changed[name] = 0.0
            elif isinstance(value, int):
                changed[name] = self._number(name, value, values)
            elif isinstance(value, (list, tuple)) and value:
                changed[name] = self._list(name, value, values)
            elif isinstance(value, dict) and self.level in _SIZES:
                changed[name] = self._rope(value)
        if "apply_spec_augment" in values:
            changed["apply_spec_augment"] = False
        spelled = _as_arguments(config)
        return {
            spelled.get(name, name): value
            for name, value in changed.items()
            if value is not None and value != values.get(name)
        }

    def _number(self, name: str, value: int, values: Mapping[str, Any]) -> int:
        if _TOKEN.search(name):
            return self._token(value)
        if _VOCABULARY.search(name):
            return min(value, VOCABULARY)
        if _LAYERS.search(name) and not _NOT_LAYERS.search(name):
            return min(value, self._layers(values)) if value > 0 else value
        if _POSITIONS.search(name):
            return min(value, POSITIONS if "source" not in name else 32)
        return self._width(name, value, values) if self.level in _SIZES else value

    def _width(self, name: str, value: int, values: Mapping[str, Any]) -> int:
        width, some_heads, groups, head_width = self._widths
        if re.search(r"experts_per_tok|moe_top_?k|num_selected_experts|^top_k$", name):
            return min(value, EXPERTS_USED)
        if re.search(r"(num|n)_(\w+_)?experts$", name):
            return min(value, EXPERTS)
        if re.search(r"^(n_groups?|num_expert_groups?|mamba_n(um)?_groups|topk_group)$", name):
            return 1
        if name == "num_filters":
            return min(value, FILTERS)
        if _GROUPS.search(name):
            heads = [v for n, v in values.items() if n in ("num_attention_heads", "num_heads", "n_head") and v]
            return some_heads if value in heads else min(value, groups)
        if name == "qk_head_dim":  # of two parts, each a head wide
            return min(value, 2 * head_width)
        if _HEAD_WIDTH.search(name):
            return min(value, head_width)
        if _HEADS.search(name):
            return min(value, some_heads)
        if _WIDTH.search(name) and not _NOT_WIDTH.search(name):
            return min(value, width)
        return value

    def _layers(self, values: Mapping[str, Any]) -> int:
        kinds, asked_for = values.get("layer_types") or (), values.get("out_indices") or ()
        return max(LAYERS, len(set(kinds)), len(asked_for))

    def _list(self, name: str, value: Any, values: Mapping[str, Any]) -> Any:
        if name in ("layer_types", "layers_block_type", "mlp_layer_types"):
            return _each_kind(list(value), self._layers(values))
        if name == "out_indices" and "num_hidden_layers" in values:
            return list(range(1, len(value) + 1))
        if name.endswith("vision_feature_layer") and all(type(item) is int for item in value):
            return type(value)(item % LAYERS for item in value)
        if name == "depths":
            return type(value)(min(item, LAYERS) for item in value)
        if _TOKEN.search(name) and all(type(item) is int for item in value):
            return type(value)(self._token(item) for item in value)
        if self.level in _SIZES and name in ("conv_dim", "tdnn_dim") and all(type(item) is int for item in value):
            return type(value)(min(item, self._widths[0]) for item in value)
        return None

    def _rope(self, value: dict[str, Any]) -> Any:
        section = value.get("mrope_section")
        if not section:
            return None
        half = self._widths[3] // 2
        scaled = [max(1, round(item * half / sum(section))) for item in section]
        scaled[0] += half - sum(scaled)
        return {**value, "mrope_section": scaled}

    def _token(self, value: int) -> int:
        if value < VOCABULARY - 28:
            return value
        return self.tokens.setdefault(value, VOCABULARY - 1 - len(self.tokens) % 27)


def small_config(config_class: Any, level: str) -> Any:
    """Build the small configuration of a class. Raises whatever the class raises when its constraints are violated."""
    recipe = recipes.CONFIGS.get(config_class.__name__)
    base = recipes.BASES.get(config_class.__name__)
    default = base() if base else config_class()
    given = _merged(Shrinker(level).overrides(default), recipe or {})
    config = base(**given) if base else config_class(**given)
    pin_randomness(config)
    if not hasattr(config, "initializer_range"):  # part of a model, which otherwise gets it from the whole
        config.initializer_range = 0.02
    return config


def pin_randomness(config: Any) -> None:
    """Set what is left of dropout, LayerDrop and SpecAugment in a configuration tree to zero, in place."""
    for name, value in _fields(config).items():
        if isinstance(value, drift.config_types()):
            pin_randomness(value)
        elif _PINNED_TO_ZERO.search(name) and isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            setattr(config, name, type(value)(0))


def _fields(config: Any) -> dict[str, Any]:
    skip = {"transformers_version", "num_labels", "id2label", "label2id", "max_length", "min_length"}
    fields = {name: value for name, value in vars(config).items() if not name.startswith("_") and name not in skip}
    # The layers whose output a backbone gives; their names follow from these.
    asked_for = getattr(config, "_out_indices", None)
    return {**fields, "out_indices": list(asked_for)} if asked_for else fields


def _set_apart(config: Any) -> dict[str, Any]:
    """Return what a part of a configuration has of its own, beyond the defaults of its class."""
    default = _fields(type(config)())
    plain = (bool, int, float, str, list, tuple, dict)
    return {
        name: value
        for name, value in _fields(config).items()
        if isinstance(value, plain) and name in default and value != default[name]
    }


def _as_arguments(config: Any) -> dict[str, str]:
    """Return how the constructor calls fields that it stores under another name."""
    known = inspect.signature(type(config)).parameters
    return {field: name for name, field in type(config).attribute_map.items() if name in known and field not in known}


def _each_kind(kinds: list[Any], count: int) -> list[Any]:
    """Keep the first layer of each kind, in order, and then the earliest others until there are `count`."""
    first = [index for index, kind in enumerate(kinds) if kind not in kinds[:index]]
    rest = [index for index in range(len(kinds)) if index not in first]
    return [kinds[index] for index in sorted([*first, *rest[: max(0, count - len(first))]])]


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        inner = merged.get(name)
        merged[name] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged
