"""Recognises a Whisper fine-tuning in a live trainer, as a configuration of its failure and the mechanism at work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from repro.guard import checkpointing
from repro.guard.live import Live
from repro.observe import spy, whisper_setup
from repro.vocabulary import Failure, Mechanism, Recognised

_MODEL = "WhisperForConditionalGeneration"


def recognise(failure: Failure, live: Live) -> Recognised | None:
    """Return the configuration that a live trainer is, and the mechanism; None where no Whisper is trained.

    Numbers without a level of their own take the nearest. What only a script knows (`predict` afterwards, a stray
    variable, how backward is called) is left at its default.
    """
    if not live.is_a(_MODEL):
        return None
    levels = {**checkpointing.levels(live), **_model_levels(live), **_trainer_levels(live)}
    configuration = failure.configuration(**levels)
    if levels["checkpointing"] == "off" or levels["use_reentrant"] == "False":
        # Nothing in the trigger asks how it is checkpointed then, and looking takes some milliseconds.
        return Recognised(configuration, {})
    return Recognised(configuration, _mechanism(live))


def _model_levels(live: Live) -> dict[str, str | int]:
    model = live.inner
    encoder = whisper_setup.stacks(live.model if live.has_adapters else model)["encoder"]
    trained = any(parameter.requires_grad for parameter in encoder.parameters())
    return {
        "use_cache": "untouched" if model.config.use_cache is not False else "False",
        "decoder_layers": max(1, min(3, len(model.model.decoder.layers))),
        "encoder": "trainable" if trained else "frozen",
        "lora": _lora(live),
        "attention": "eager" if getattr(model.config, "_attn_implementation", "") == "eager" else "sdpa",
    }


def _trainer_levels(live: Live) -> dict[str, str | int]:
    evaluates = _text(live.argument("eval_strategy", "no")) != "no"
    return {
        "precision": "bf16" if live.argument("bf16") else "fp16" if live.argument("fp16") else "fp32",
        "evaluation": "steps" if evaluates else "no",
        "predict_with_generate": "yes" if live.argument("predict_with_generate") else "no",
        "accumulation": 1 if live.argument("gradient_accumulation_steps", 1) == 1 else 4,
        "tokenizer": "given" if live.processing is not None else "not given",
        "best_model": "yes" if evaluates and live.argument("load_best_model_at_end") else "no",
    }


def _text(strategy: Any) -> str:
    return str(getattr(strategy, "value", strategy))


def _outside_of_layers(module: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the modules of a model by name, without its layers: they are most of it, and nothing here asks for them."""
    yield name, module
    for own, child in module.named_children():
        if own != "layers":
            yield from _outside_of_layers(child, f"{name}.{own}" if name else own)


def _needing_hooks(model: Any) -> dict[str, Any]:
    """Return the modules before the layers whose output is made to need a gradient, as peft and transformers do it."""
    return {
        name: module
        for name, module in _outside_of_layers(model)
        if any("require_grad" in getattr(hook, "__name__", "") for hook in module._forward_hooks.values())
    }


def _mechanism(live: Live) -> Mechanism:
    """Look at how the classes at hand, patched or not, checkpoint a Whisper: on a tiny one, in a forward pass."""
    import torch

    kind = next(kind for kind in type(live.inner).__mro__ if kind.__name__ == _MODEL)
    mechanism: dict[str, Any] = {"inputs_with_gradient": {}}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad():
        # Watched from before checkpointing is enabled, for that is when a model takes hold of the function.
        with spy.watching() as seen:
            model = _tiny(kind)
            model.gradient_checkpointing_enable()
            _forward(model)
        mechanism["default_mode"] = "reentrant" if "reentrant" in seen.modes else "non-reentrant"
        mechanism["live_keywords"] = sorted(seen.live_keywords)
        if live.has_adapters:
            mechanism["inputs_with_gradient"][_lora(live)] = _inputs_with_gradient(model, live)
    return mechanism


def _lora(live: Live) -> str:
    """Return the level of the factor `lora`: adapters put on after checkpointing make the inputs need gradients."""
    if not live.has_adapters:
        return "off"
    return "after" if _needing_hooks(live.inner) else "before"


def _tiny(kind: Any) -> Any:
    from transformers import WhisperConfig

    config = WhisperConfig(
        vocab_size=8, num_mel_bins=2, d_model=4, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=1, encoder_ffn_dim=4, decoder_ffn_dim=4, max_source_positions=2, max_target_positions=4,
        dropout=0.0, pad_token_id=0, bos_token_id=1, decoder_start_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return kind(config).train()


def _forward(model: Any) -> None:
    import torch

    model(input_features=torch.zeros(1, 2, 4), labels=torch.zeros(1, 2, dtype=torch.long))


def _inputs_with_gradient(tiny: Any, live: Live) -> list[str]:
    """Return the stacks whose first layer gets an input that needs a gradient.

    The tiny model trains what the live one trains before its layers, and has the same hooks there.
    """
    trained = tuple(
        name
        for name, module in _outside_of_layers(live.inner)
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    )
    for name, parameter in tiny.named_parameters():
        module = name.rpartition(".")[0]
        parameter.requires_grad_(any(other == module or other.startswith(module + ".") for other in trained))
    for name in _needing_hooks(live.inner):
        tiny.get_submodule(name).register_forward_hook(lambda _module, _inputs, output: output.requires_grad_(True))
    reached: set[str] = set()
    for name, stack in whisper_setup.stacks(tiny).items():
        stack.layers[0].register_forward_pre_hook(
            lambda _layer, inputs, name=name: reached.add(name) if inputs and inputs[0].requires_grad else None
        )
    _forward(tiny)
    return sorted(reached)
