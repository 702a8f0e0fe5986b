"""Recognises a Whisper fine-tuning in a live trainer, as a configuration of its failure and the mechanism at work."""

from __future__ import annotations

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
    if levels["checkpointing"] == "off":
        return Recognised(configuration, {})
    return Recognised(configuration, _mechanism(live, str(levels["lora"])))


def _model_levels(live: Live) -> dict[str, str | int]:
    model = live.inner
    encoder = whisper_setup.stacks(live.model if live.has_adapters else model)["encoder"]
    trained = any(parameter.requires_grad for parameter in encoder.parameters())
    return {
        "use_cache": "untouched" if model.config.use_cache is not False else "False",
        "decoder_layers": max(1, min(3, len(model.model.decoder.layers))),
        "encoder": "trainable" if trained else "frozen",
        "lora": ("after" if _inputs_made_to_need_gradients(model) else "before") if live.has_adapters else "off",
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


def _inputs_made_to_need_gradients(model: Any) -> bool:
    """Tell whether peft found checkpointing on already, and made the inputs of the stacks need gradients for it."""
    embeddings = model.get_input_embeddings()
    return bool(embeddings is not None and embeddings._forward_hooks)


def _mechanism(live: Live, lora: str) -> Mechanism:
    """Look at how the classes at hand, patched or not, checkpoint a Whisper: on a tiny one, in a forward pass."""
    import torch

    kind = next(kind for kind in type(live.inner).__mro__ if kind.__name__ == _MODEL)
    mechanism: dict[str, Any] = {"inputs_with_gradient": {}}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad():
        # Watched from before checkpointing is enabled, for that is when a model takes hold of the function.
        with spy.watching() as seen:
            model = _tiny(kind, checkpointed=True)
            _forward(model)
        mechanism["default_mode"] = "reentrant" if "reentrant" in seen.modes else "non-reentrant"
        mechanism["live_keywords"] = sorted(seen.live_keywords)
        if lora != "off":
            mechanism["inputs_with_gradient"][lora] = _inputs_with_gradient(kind, live, lora)
    return mechanism


def _tiny(kind: Any, *, checkpointed: bool) -> Any:
    from transformers import WhisperConfig

    config = WhisperConfig(
        vocab_size=8, num_mel_bins=2, d_model=4, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=1, encoder_ffn_dim=4, decoder_ffn_dim=4, max_source_positions=2, max_target_positions=4,
        dropout=0.0, pad_token_id=0, bos_token_id=1, decoder_start_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = kind(config).train()
    if checkpointed:
        model.gradient_checkpointing_enable()
    return model


def _forward(model: Any) -> None:
    import torch

    model(input_features=torch.zeros(1, 2, 4), labels=torch.zeros(1, 2, dtype=torch.long))


def _inputs_with_gradient(kind: Any, live: Live, lora: str) -> list[str]:
    """Return the stacks whose first layer gets an input that needs a gradient, with adapters where the live model's are."""
    import peft

    trained = [name for name, p in live.inner.named_parameters() if p.requires_grad]
    inside = r".*decoder.*" if not any(".encoder." in name for name in trained) else r".*"
    model = _tiny(kind, checkpointed=lora == "after")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=1, target_modules=rf"{inside}\.(q_proj|v_proj)"))
    if lora == "before":
        wrapped.gradient_checkpointing_enable()
    reached = []
    for name, stack in whisper_setup.stacks(wrapped).items():
        stack.layers[0].register_forward_pre_hook(
            lambda _layer, inputs, name=name: reached.append(name) if inputs and inputs[0].requires_grad else None
        )
    _forward(wrapped)
    return sorted(set(reached))
