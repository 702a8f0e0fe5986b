"""Something to feed a tiny model: tensors by the names of its forward's arguments, in several guesses, best first."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch

from repro.census import drift, recipes

BATCH, LENGTH, FRAMES, SAMPLES = 2, 10, 64, 8000

LARGE_PICTURE = 512
"""Pixels along a side from which a picture costs gibibytes in a model of however few layers."""

Inputs = dict[str, Any]

_SIGNALS = (
    "input_ids",
    "pixel_values",
    "pixel_values_videos",
    "input_features",
    "input_values",
    "audio_values",
    "audio_features",
    "inputs",
    "inputs_embeds",
)
_GRIDS = ("grid_thw", "image_grid_thw", "grid_hws", "image_grid_hws")
_LABEL_HEADS = (
    ("ForCTC", "short"),
    ("SequenceClassification", "one"),
    ("AudioClassification", "one"),
    ("ImageClassification", "one"),
    ("VideoClassification", "one"),
    ("XVector", "one"),
    ("Seq2Seq", "decoder"),
    ("ConditionalGeneration", "text"),
    ("CausalLM", "text"),
    ("LMHead", "text"),
    ("MaskedLM", "text"),
    ("TokenClassification", "tags"),
)


def guesses(model: Any) -> Iterator[tuple[str, Inputs]]:
    """Yield (what it is, inputs) for a model: with labels first, all its signals first, then less."""
    names = _parameters(model)
    recipe = recipes.INPUTS.get(type(model).__name__)
    if recipe:
        yield "recipe", {name: _from_recipe(what) for name, what in recipe.items()}
        return
    main = getattr(model, "main_input_name", "input_ids")
    signals = [name for name in _SIGNALS if name in names and name != "inputs_embeds"]
    if main in names and main not in signals:
        signals.insert(0, main)
    required = [name for name, parameter in names.items() if parameter.default is inspect.Parameter.empty]
    first = [main] if main in names else []
    text = ["input_ids"] if "input_ids" in names else []
    choices = [signals, [*first, *text], first, text, required]
    for extra in (["encoder_hidden_states"], ["decoder_input_values"], ["decoder_inputs_embeds"]):
        if extra[0] in names:
            choices += [[*first, *extra], extra]
    if "inputs_embeds" in names:
        choices += [["inputs_embeds"], ["inputs_embeds", "decoder_input_ids"] if "decoder_input_ids" in names else []]
    for optional in ("feature_lens", "image_grid_thw", "grid_thw", "padding_mask", "attention_mask"):
        if optional in names:
            choices.append([*first, optional])
    choices = [choice for choice in choices if choice]
    seen: list[set[str]] = []
    for choice in choices:
        chosen = list(dict.fromkeys([*choice, *required]))
        if not chosen or set(chosen) in seen:
            continue
        seen.append(set(chosen))
        for layout in range(_layouts(chosen, model.config)):
            given = _given(model, chosen, names, layout)
            if given is None:
                continue
            for label_kind, labels in _labels(model, names, given):
                yield f"{', '.join(given)}{label_kind}", {**given, **labels}


def _from_recipe(what: tuple[Any, ...]) -> Any:
    kind, *shape = what
    if kind == "is":
        return shape[0]
    if kind in ("noise", "hidden"):
        return torch.randn(*shape, requires_grad=kind == "hidden")
    if kind == "are":
        return torch.tensor(shape[0])
    if kind == "ones":
        return torch.ones(*shape, dtype=torch.long)
    if kind == "grid":
        return _grid(*shape)
    return torch.randint(3, 30, tuple(shape))


def _grid(batch: int, columns: int, rows: int) -> Any:
    places = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="ij")
    return torch.stack(places, -1).reshape(1, columns * rows, 2).expand(batch, -1, -1)


def _layouts(chosen: list[str], config: Any) -> int:
    """Return how many layouts of the same signals are worth trying."""
    if any("feature" in name or "values" in name for name in chosen if name != "pixel_values"):
        return 4
    if any(name in chosen for name in _GRIDS):
        return 4
    if "pixel_values" in chosen:
        return 3 if _is_large(config) else 2
    return 4 if find(config, "num_codebooks", "n_codebooks", "num_quantizers", "num_channels") else 1


def _parameters(model: Any) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }


def _given(model: Any, chosen: list[str], names: dict[str, Any], layout: int) -> Inputs | None:
    given: Inputs = {}
    for name in chosen:
        known = _value(name, model.config, layout)
        if known is None and name == getattr(model, "main_input_name", ""):
            known = value(name, model.config, given)
        if known is not None:
            given[name] = known
    given.update(_patches(given, names, model.config, layout))
    if type(model).__name__.endswith("ForMultipleChoice"):
        given = {name: value.unsqueeze(1).expand(-1, 2, *value.shape[1:]).contiguous() for name, value in given.items()}
    decoder = model.config.is_encoder_decoder or any(n in chosen for n in ("decoder_input_ids",))
    if decoder and "decoder_input_ids" in names and "decoder_input_ids" not in given:
        given["decoder_input_ids"] = _value("decoder_input_ids", model.config, layout)
    return given or None


def _patches(given: Inputs, names: dict[str, Any], config: Any, layout: int) -> Inputs:
    """Return pictures as patches, where their number in each direction is an input as well."""
    name = next((name for name in ("pixel_values", "hidden_states") if name in given), "")
    packed = any(name in given for name in _GRIDS)
    if not name or not (packed or "spatial_shapes" in names):
        return {}
    size = _size(find(config, "patch_size", default=16))[0]
    channels, in_time = _image(config)[0], int(find(config, "temporal_patch_size", default=1))
    width = _patch_width(config)
    if not packed:
        shapes = {"spatial_shapes": torch.tensor([[4, 4]] * BATCH)}
        masks = (
            {"pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long)} if "pixel_attention_mask" in names else {}
        )
        return {name: torch.randn(BATCH, 16, width), **shapes, **masks}
    shape = ((width * in_time,), (channels, size, size), (width,), (channels, in_time, size, size))[layout % 4]
    return {name: torch.randn(16 * BATCH, *shape)}


def _patch_width(config: Any) -> int:
    return _image(config)[0] * _size(find(config, "patch_size", default=16))[0] ** 2


def _labels(model: Any, names: dict[str, Any], given: Inputs) -> Iterator[tuple[str, Inputs]]:
    kind = next((kind for head, kind in _LABEL_HEADS if head in type(model).__name__), None)
    if kind and "labels" in names:
        labels = _label_tensor(kind, model.config, given)
        if labels is not None:
            yield " with labels", {"labels": labels}
    yield "", {}


def _label_tensor(kind: str, config: Any, given: Inputs) -> Any:
    if kind == "short":
        return torch.randint(1, min(vocabulary(config), 20), (BATCH, 2))
    if kind == "one":
        return torch.zeros(BATCH, dtype=torch.long)
    text = given.get("decoder_input_ids", given.get("input_ids"))
    if text is None or text.ndim != 2:
        return None
    return torch.zeros_like(text) if kind == "tags" else text.clone()


def find(config: Any, *names: str, default: Any = None) -> Any:
    """Return the first of these fields that a configuration or, after that, one of its sub-configurations has."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None and not callable(value):
            return value
    for value in vars(config).values():
        if isinstance(value, drift.config_types()):
            found = find(value, *names)
            if found is not None:
                return found
    return default


def vocabulary(config: Any) -> int:
    """Return the smallest vocabulary of a configuration tree's text parts."""
    size = find(config, "vocab_size", "text_vocab_size", "codebook_size", default=100)
    return int(size if isinstance(size, int) else size[0])


def _ids(config: Any, length: int = LENGTH) -> Any:
    top = max(4, min(vocabulary(config), 100))
    reserved = [getattr(config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")]
    allowed = [number for number in range(3, top) if number not in reserved] or [3]
    picks = torch.randint(0, len(allowed), (BATCH, length))
    return torch.tensor(allowed)[picks]


def _size(value: Any, default: int = 32) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if isinstance(value, dict):
        return int(value.get("height", default)), int(value.get("width", default))
    if isinstance(value, (list, tuple)) and len(value) >= 2:
        return int(value[-2]), int(value[-1])
    return default, default


def _image(config: Any) -> tuple[int, int, int]:
    height, width = _size(find(config, "image_size", "input_size", default=64))
    return int(find(config, "num_channels", "in_channels", "num_input_channels", "in_chans", default=3)), height, width


def _is_large(config: Any) -> bool:
    return max(_image(config)[1:]) > LARGE_PICTURE


def _picture(config: Any, layout: int) -> Any:
    """Return pictures, or in the last layout videos. Where they are large, smaller ones come first: many models do."""
    channels, *size = _image(config)
    if _is_large(config):
        layout -= 1
    if layout < 0:
        patch = _size(find(config, "patch_size", default=16))[0]
        size = [min(size[0], 16 * patch), min(size[1], 16 * patch)]
    return _video(config) if layout == 1 else torch.randn(BATCH, channels, *size)


def _video(config: Any) -> Any:
    frames = find(config, "num_frames", "frames_per_clip", "num_image_with_embedding", default=2)
    return torch.randn(BATCH, int(frames), *_image(config))


def _features(config: Any, layout: int) -> Any:
    width = find(
        config, "num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel", "n_mels", "input_dim",
        "feature_size", "mel_bins", "num_mels", "input_channels", default=80,
    )  # fmt: skip
    positions = find(config, "max_source_positions")
    frames = 2 * positions if positions and layout == 0 else FRAMES
    if layout == 3:
        return torch.randn(BATCH, int(find(config, "n_window", default=50)) * 4, int(width)).transpose(1, 2)
    if layout == 2:
        return torch.randn(BATCH, 1, frames, int(width))
    return torch.randn(BATCH, int(width), frames) if layout == 0 else torch.randn(BATCH, frames, int(width))


def _values(config: Any, layout: int) -> Any:
    # Older releases give every configuration a `max_length` of 20, which is one of generation.
    if layout == 0 and getattr(config, "max_length", 20) != 20 and hasattr(config, "num_mel_bins"):
        return torch.randn(BATCH, int(config.max_length), int(config.num_mel_bins))
    if layout == 1:
        return torch.randn(BATCH, 1, SAMPLES)
    if layout == 3:
        return _ids(config)
    if layout == 2:
        return torch.randn(BATCH, FRAMES, int(find(config, "num_mel_bins", default=80)))
    return torch.randn(BATCH, SAMPLES)


def _value(name: str, config: Any, layout: int) -> Any:
    if name.endswith("input_ids"):
        return _text(name, config, layout)
    if name in ("spkr_id", "lang_id", "speaker_id", "speaker_ids", "lang_code"):
        return torch.zeros(BATCH, 1, dtype=torch.long)
    if name in ("grid_thw", "image_grid_thw", "video_grid_thw"):
        return torch.tensor([[1, 4, 4]] * BATCH)
    if name in ("grid_hws", "image_grid_hws"):
        return torch.tensor([[4, 4]] * BATCH)
    if name.startswith(("past_", "future_", "static_")):
        return _series(name, config)
    if name in ("feature_lens", "input_lengths", "lengths"):
        return torch.full((BATCH,), FRAMES)
    if name in ("time_step", "timestep", "timesteps", "timestep_idx"):
        return torch.ones(BATCH)
    if name == "mask":
        return torch.ones(BATCH, LENGTH, dtype=torch.bool)
    if name == "decoder_input_values":
        return torch.randn(BATCH, LENGTH, int(find(config, "num_mel_bins", default=80)))
    if name == "pixel_position_ids":
        return _grid(BATCH, 16, 16)
    if name in ("input_features", "audio_features"):
        return _features(config, layout)
    if name in ("input_values", "audio_values", "input_audio"):
        return _values(config, layout)
    if name == "pixel_values":
        return _picture(config, layout)
    if name == "pixel_values_videos":
        return _video(config)
    if name.endswith(("attention_mask", "padding_mask", "input_features_mask")):
        return torch.ones(BATCH, LENGTH, dtype=torch.long)
    if name == "bbox":
        return torch.tensor([1, 2, 3, 4]).expand(BATCH, LENGTH, 4).contiguous()
    if name.endswith(("_features_mask", "features_attention_mask", "feature_attention_mask")):
        return torch.ones(BATCH, FRAMES, dtype=torch.long)
    if name in ("inputs_embeds", "hidden_states", "encoder_hidden_states", "decoder_inputs_embeds"):
        width = find(config, "hidden_size", "d_model", "embed_dim", "width", default=64)
        return torch.randn(BATCH, LENGTH, int(width), requires_grad=True)
    if re.search(r"position_ids$", name):
        return torch.arange(LENGTH).expand(BATCH, LENGTH).contiguous()
    return None


def value(name: str, config: Any, given: Inputs) -> Any:
    """Return a value for an argument that a forward turned out to need; None where the name says nothing.

    `given` are the other inputs; hidden states get as many positions as the text has.
    """
    known = _value(name, config, 0)
    if known is not None:
        return known
    if name.endswith("mask"):
        return torch.ones(BATCH, LENGTH, dtype=torch.long)
    if re.search(r"(embeds?|hidden_states?|states|features|embeddings)$", name):
        return _value("hidden_states", config, 0)
    if name == "flattened_patches":  # each begins with its row and its column
        return torch.cat([_grid(BATCH, 4, 4) + 1.0, torch.randn(BATCH, 16, _patch_width(config))], -1)
    if name in ("target_sizes", "tgt_sizes", "image_sizes"):
        return torch.tensor([[4, 4]] * BATCH)
    if name.endswith("_ids"):
        text = given.get("input_ids")
        return torch.zeros_like(text) if text is not None else _ids(config)
    return None


def _series(name: str, config: Any) -> Any:
    """Return a part of a time series; None where the configuration is not one of a model of them."""
    past, future = find(config, "context_length"), find(config, "prediction_length", default=8)
    if past is None:
        return None
    lags, dimensions = (
        find(config, "lags_sequence", default=[0]),
        find(config, "num_input_channels", "input_size", default=1),
    )
    count = int(future) if name.startswith("future_") else int(past) + max(lags)
    if name.endswith("time_features"):
        return torch.randn(BATCH, count, int(find(config, "num_time_features", default=0)))
    if name.startswith("static_"):
        return None
    shape = (BATCH, count) if dimensions == 1 and hasattr(config, "lags_sequence") else (BATCH, count, int(dimensions))
    return torch.ones(shape) if name.endswith("mask") else torch.rand(shape) + 1.0


def _text(name: str, config: Any, layout: int) -> Any:
    """Return token ids; for models that read codes of several codebooks, in the layouts in which they are passed."""
    books = find(config, "num_codebooks", "n_codebooks", "num_channels", "num_quantizers", default=1)
    decoder = name.startswith("decoder") or not getattr(config, "is_encoder_decoder", False)
    if layout == 0 or not decoder or not isinstance(books, int) or books < 2:
        return _ids(config)
    if layout == 3:
        return torch.randint(3, 30, (BATCH, int(books) + 1, LENGTH))
    shape = (BATCH, LENGTH, int(books)) if layout == 1 else (BATCH * int(books), LENGTH)
    return torch.randint(3, 30, shape)
