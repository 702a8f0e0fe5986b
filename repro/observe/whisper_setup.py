"""A tiny Whisper set up as a configuration says, in the order in which a script would do it."""

from __future__ import annotations

from typing import Any

import torch

from repro.observe import drift, raised
from repro.speech import whisper
from repro.vocabulary import Configuration

REENTRANT: dict[str, bool | None] = {"unset": None, "True": True, "False": False}


def model_for(configuration: Configuration) -> torch.nn.Module:
    """Build the model; apply freezing, LoRA, the cache switch, and checkpointing if the script itself enables it."""
    model = whisper.build(
        decoder_layers=int(configuration["decoder_layers"]), attention=str(configuration["attention"])
    )
    if configuration["use_cache"] != "untouched":
        model.config.use_cache = configuration["use_cache"] == "True"
    if configuration["encoder"] == "frozen" and configuration["lora"] == "off":
        model.freeze_encoder()
    if configuration["lora"] == "before":
        model = with_lora(model, configuration)
    if configuration["checkpointing"] in ("method", "both"):
        use_reentrant = REENTRANT[str(configuration["use_reentrant"])]
        drift.enable_checkpointing(model.gradient_checkpointing_enable, use_reentrant)
    if configuration["lora"] == "after":
        model = with_lora(model, configuration)
    return model.train()


def with_lora(model: Any, configuration: Configuration) -> Any:
    """Wrap a model with LoRA on the attention's queries and values; a frozen encoder gets none."""
    try:
        import peft
    except ImportError as error:
        raise raised.UnobservableError("LoRA needs peft, which is not installed here") from error
    inside = r".*decoder.*" if configuration["encoder"] == "frozen" else r".*"
    # Fresh LoRA weights would have gradients of exactly zero in one half; random ones leave no gradient untested.
    lora = peft.LoraConfig(r=2, target_modules=rf"{inside}\.(q_proj|v_proj)", init_lora_weights=False)
    return peft.get_peft_model(model, lora)


def stacks(model: Any) -> dict[str, torch.nn.Module]:
    """Return the encoder and the decoder, whatever wraps the model."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {"encoder": inner.model.encoder, "decoder": inner.model.decoder}


def settings_proof(model: Any) -> dict[str, Any]:
    """Return which settings took effect, as read off the model itself."""
    encoder = stacks(model)["encoder"]
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {
        "encoder_trains": any(p.requires_grad for p in encoder.parameters()),
        "attention": getattr(inner.config, "_attn_implementation", None),
        "decoder_layers": len(stacks(model)["decoder"].layers),
        "use_cache": inner.config.use_cache,
    }
