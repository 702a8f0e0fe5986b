"""Trials of the bare Whisper: one forward and one backward, compared with the twin without checkpointing."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from repro.observe import fresh, gradients, raised
from repro.observe.spy import watching
from repro.observe.whisper_setup import model_for, settings_proof, stacks
from repro.speech import whisper
from repro.vocabulary import Configuration, Facts

_TWINS: gradients.Twins[tuple[float, gradients.Gradients]] = gradients.Twins()


def twin_of(configuration: Configuration) -> Configuration:
    """Return the same configuration without checkpointing, and without a cache: checkpointing switches it off."""
    lora = "off" if configuration["lora"] == "off" else "before"
    return configuration.but(checkpointing="off", use_reentrant="unset", use_cache="False", lora=lora)


def observe(configuration: Configuration) -> Facts:
    """Run one configuration and return its facts: end, loss, gradients against the twin, proofs of the settings."""
    fresh.start()
    facts: dict[str, Any] = {"end": "completed"}
    with watching() as seen:
        model = model_for(configuration)
        try:
            loss, proof = _forward_backward(model, configuration)
        except Exception as error:
            facts.update(end="refused" if raised.is_refusal(error) else "raised", exception=raised.as_facts(error))
            proof = {}
    facts["proofs"] = {**seen.as_facts(), **settings_proof(model), **proof}
    if facts["end"] != "completed":
        return facts
    twin_loss, twin = _TWINS.get(twin_of(configuration), lambda: _run_twin(twin_of(configuration)))
    facts["losses"] = [loss]
    facts["twin_losses"] = [twin_loss]
    facts["loss_finite"] = math.isfinite(loss)
    facts["gradients"] = gradients.compare(gradients.of(model), twin, str(configuration["precision"]))
    return facts


def _run_twin(configuration: Configuration) -> tuple[float, gradients.Gradients]:
    fresh.start()
    model = model_for(configuration)
    loss, _ = _forward_backward(model, configuration)
    return loss, gradients.of(model)


def _forward_backward(model: torch.nn.Module, configuration: Configuration) -> tuple[float, dict[str, Any]]:
    precision = configuration["precision"]
    cast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    with cast:
        output = model(**whisper.batch())
    output.loss.backward()
    proof = {"cache_returned": output.past_key_values is not None, "logits": str(output.logits.dtype)}
    return float(output.loss.detach()), proof


def probe() -> dict[str, Any]:
    """Look at how this release checkpoints Whisper, and return the mechanism that the trigger is stated in.

    `default_mode`: what `gradient_checkpointing_enable()` without arguments leads to. `live_keywords`: the names under
    which tensors with a gradient reach a checkpointed layer by keyword. `inputs_with_gradient`: the stacks whose first
    layer gets an input that requires a gradient, for plain training, and for LoRA enabled before and after
    checkpointing (None without peft). `cache_is_short`: a decoder with more layers than the encoder outgrows its cache.
    """
    plain = Configuration(
        {
            "checkpointing": "method",
            "use_reentrant": "unset",
            "use_cache": "untouched",
            "decoder_layers": 1,
            "encoder": "trainable",
            "lora": "off",
            "precision": "fp32",
            "attention": "sdpa",
        }
    )
    fresh.start()
    with watching() as seen:
        _forward_backward(model_for(plain), plain)
    return {
        "default_mode": "reentrant" if "reentrant" in seen.modes else "non-reentrant",
        "live_keywords": sorted(seen.live_keywords),
        "inputs_with_gradient": {order: _inputs_with_gradient(plain.but(lora=order)) for order in ("before", "after")},
        "cache_is_short": _cache_is_short(plain.but(checkpointing="off", use_cache="True", decoder_layers=3)),
    }


def _cache_is_short(configuration: Configuration) -> bool:
    with torch.no_grad():
        try:
            model_for(configuration)(**whisper.batch(), use_cache=True)
        except IndexError:
            return True
    return False


def _inputs_with_gradient(configuration: Configuration) -> list[str] | None:
    try:
        model = model_for(configuration)
    except raised.UnobservableError:
        return None
    reached: list[str] = []

    def note(stack: str) -> Any:
        def look(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].requires_grad:
                reached.append(stack)

        return look

    for name, stack in stacks(model).items():
        stack.layers[0].register_forward_pre_hook(note(name))
    with torch.enable_grad():
        model(**whisper.batch())
    return sorted(set(reached))
