"""A tiny speech encoder with its head, set up as a configuration says, in the order in which a script would do it.

A failure's configuration may lack factors; what it does not mention stays as the library has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from repro.observe import drift, raised
from repro.speech import encoders
from repro.vocabulary import Configuration

REENTRANT: dict[str, bool | None] = {"unset": None, "True": True, "False": False}


@dataclass(frozen=True)
class Parts:
    """Where a family keeps what a script freezes or hooks: expressions that parameter names match, and module names.

    `front` are all parameters before the encoder's layers, `convolutions` those of them that convolve the sound,
    `positions` the relative positions that the layers share, `head` all after the layers. `entrance` is the module
    whose output (with `entered`, whose input) reaches the first checkpointed layer. `saved` is the head as LoRA is
    told to train it whole.
    """

    convolutions: str
    front: str = ""
    positions: str = ""
    head: str = ""
    entrance: str = ""
    entered: bool = False
    saved: tuple[str, ...] = ()


PARTS: Mapping[str, Parts] = {
    "wav2vec2": Parts(
        r"feature_extractor",
        r"feature_extractor|feature_projection|pos_conv_embed|encoder\.layer_norm|masked_spec_embed",
        head=r"lm_head",
        entrance="wav2vec2.feature_projection",
        saved=("lm_head",),
    ),
    "whisper": Parts(
        r"encoder\.conv[12]\.",
        r"encoder\.conv[12]\.|embed_positions",
        head=r"encoder\.layer_norm|projector|classifier",
        entrance="encoder.conv2",
        saved=("projector", "classifier"),
    ),
    "sew-d": Parts(r"feature_extractor", positions=r"rel_embeddings|encoder\.encoder\.LayerNorm"),
    "speecht5": Parts(r"feature_encoder", positions=r"embed_positions\.pe_k"),
    "wavlm": Parts(r"feature_extractor", positions=r"rel_attn_embed"),
    "omniasr": Parts(r"subsampling\.conv_layers", entrance="model.audio_tower.subsampling", entered=True),
}


def model_for(family: str, configuration: Configuration) -> Any:
    """Build the model; apply freezing, LoRA, what makes inputs need gradients, and the script's own checkpointing.

    Raises UnobservableError where this release lacks the family, or LoRA is asked for without peft.
    """
    try:
        model = encoders.build(family, layers=int(configuration.get("layers", 2)))
    except encoders.NotInThisReleaseError as error:
        raise raised.UnobservableError(str(error)) from error
    parts, lora = PARTS[family], configuration.get("lora", "off")
    freeze(model, parts, str(configuration.get("frozen", "nothing")))
    if configuration.get("head", "trainable") == "frozen":
        _freeze_matching(model, parts.head)
    if lora == "before":
        model = with_lora(model, parts, configuration)
    if configuration["checkpointing"] == "method":
        drift.enable_checkpointing(model.gradient_checkpointing_enable, REENTRANT[str(configuration["use_reentrant"])])
    if lora == "after":
        model = with_lora(model, parts, configuration)
    let_inputs_need_gradients(model, parts, str(configuration.get("inputs", "untouched")))
    return model.train()


def freeze(model: Any, parts: Parts, what: str) -> None:
    """Freeze a part of a model: `nothing`, `convolutions`, `relative positions` or `all before the layers`.

    The convolutions are frozen by the model's own method, where it has one.
    """
    by_method = what in ("convolutions", "all before the layers") and hasattr(model, "freeze_feature_encoder")
    if by_method:
        # Not only freezes: it also ends that the front makes the sound itself need a gradient.
        model.freeze_feature_encoder()
    if what != "nothing" and not (by_method and what == "convolutions"):
        names = {"convolutions": parts.convolutions, "relative positions": parts.positions}
        _freeze_matching(model, names.get(what, parts.front))


def _freeze_matching(model: torch.nn.Module, expression: str) -> None:
    found = [p for name, p in model.named_parameters() if re.search(expression, name)]
    if not expression or not found:
        raise LookupError(f"no parameter of {type(model).__name__} matches {expression!r}")
    for parameter in found:
        parameter.requires_grad_(False)


def with_lora(model: Any, parts: Parts, configuration: Configuration) -> Any:
    """Wrap a model with LoRA on the attention's queries and values; a head that trains is trained whole."""
    try:
        import peft
    except ImportError as error:
        raise raised.UnobservableError("LoRA needs peft, which is not installed here") from error
    saved = list(parts.saved) if configuration["head"] == "trainable" else None
    # Fresh LoRA weights would have gradients of exactly zero in one half; random ones leave no gradient untested.
    lora = peft.LoraConfig(
        r=2, target_modules=r".*encoder.*\.(q_proj|v_proj)", init_lora_weights=False, modules_to_save=saved
    )
    return peft.get_peft_model(model, lora)


def let_inputs_need_gradients(model: Any, parts: Parts, how: str) -> None:
    """Follow the advice that makes a checkpointed layer's input need a gradient, by the library's method or a hook."""
    if how == "enable_input_require_grads":
        model.enable_input_require_grads()
    elif how == "hook":
        entrance = base_of(model).get_submodule(parts.entrance)
        if parts.entered:
            entrance.register_forward_pre_hook(lambda _module, inputs: _need_gradient(inputs))
        else:
            entrance.register_forward_hook(lambda _module, _inputs, output: _need_gradient(output))


def _need_gradient(value: Any) -> None:
    for tensor in value if isinstance(value, tuple) else (value,):
        if not tensor.requires_grad:
            tensor.requires_grad_(True)


def base_of(model: Any) -> Any:
    """Return the model itself, whatever wraps it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def settings_proof(model: Any) -> dict[str, Any]:
    """Return which settings took effect, as read off the model itself."""
    parameters = dict(base_of(model).named_parameters())
    return {
        "trainable_parameters": sum(p.requires_grad for p in parameters.values()),
        "frozen_parameters": sum(not p.requires_grad for p in parameters.values()),
        "lora_parameters": sum("lora_" in name for name in parameters),
        "encoder_layers": len(encoder_layers(model)),
    }


def encoder_layers(model: Any) -> torch.nn.ModuleList:
    """Return the layers of the (first) transformer encoder of a model."""
    modules = base_of(model).named_modules()
    return next(
        module
        for name, module in modules
        if isinstance(module, torch.nn.ModuleList) and re.search(r"(encoder|audio_tower)\.layers?$", name)
    )
