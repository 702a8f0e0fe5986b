"""A published size as a subject: built from its configuration, fed with clips of the length asked for (cell tier)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from repro.forecast.architectures import Architecture
from repro.forecast.setting import Setting
from repro.forecast.work import NotForecastableError
from repro.speech.clips import SAMPLING_RATE

_DTYPES = {"bf16-weights": torch.bfloat16}
RANDOM_LAYERS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Settings by which a model leaves out layers at random."""


class Published:
    """Builds the model and its batches. A layer that might be dropped at random is not: that is the worst case."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.name = architecture.name
        self.notes: tuple[str, ...] = ()

    def model(self, setting: Setting) -> Any:
        """Build the model with the attention, checkpointing, precision and frozen parts of the setting."""
        import transformers

        which = self.architecture
        if setting.attention not in which.attentions:
            raise NotForecastableError(
                f"{self.name} has no {setting.attention} attention; it has: {', '.join(which.attentions)}"
            )
        if which.label_limit and setting.labels > which.label_limit:
            raise NotForecastableError(f"{self.name} takes at most {which.label_limit} labels, not {setting.labels}")
        try:
            model_class = getattr(transformers, which.model_class)
            config = getattr(transformers, which.config_class)(**which.config)
        except AttributeError:
            raise NotForecastableError(
                f"transformers {transformers.__version__} has no {which.model_class}; {self.name} came later"
            ) from None
        if setting.attention == "sdpa" and getattr(model_class, "_supports_sdpa", True) is False:
            raise NotForecastableError(
                f"transformers {transformers.__version__} has no sdpa attention for {self.name} yet; it has: eager"
            )
        for name in RANDOM_LAYERS:
            if hasattr(config, name):
                setattr(config, name, 0.0)
        # SpecAugment draws its mask from numbers; it takes little, where little is alive.
        config.apply_spec_augment = False
        config._attn_implementation = setting.attention
        model = model_class(config)
        if setting.precision in _DTYPES:
            model = model.to(_DTYPES[setting.precision])
        if setting.freeze_encoder:
            freeze_encoder(model)
        if setting.checkpointing != "off":
            enable_checkpointing(model, setting)
        return model

    def inputs(self, setting: Setting, size: int, training: bool) -> dict[str, torch.Tensor]:  # noqa: ARG002
        """Return features (size, mel bins, 3000) or samples (size, samples), and labels (size, labels)."""
        dtype = _DTYPES.get(setting.precision, torch.float32)
        inputs = {"labels": torch.zeros((size, setting.labels), dtype=torch.int64)}
        if self.architecture.input == "mel":
            inputs["input_features"] = torch.empty((size, self.architecture.config["num_mel_bins"], 3000), dtype=dtype)
            return inputs
        samples = int(setting.seconds * SAMPLING_RATE)
        inputs["input_values"] = torch.empty((size, samples), dtype=dtype)
        if self.architecture.mask:
            inputs["attention_mask"] = torch.ones((size, samples), dtype=torch.int64)
        return inputs

    def labels_of(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the labels."""
        return [inputs["labels"]]

    def kept(self, outputs: Any, labels: Any, setting: Setting) -> Any:  # noqa: ARG002
        """Return the outputs, or the argmax of the logits, as the usual preprocessing function does."""
        return outputs[0].argmax(-1) if setting.keep == "argmax" else outputs


def freeze_encoder(model: Any) -> None:
    """Freeze the encoder, where the model has a decoder, else the convolutions that make features of the wave."""
    if hasattr(model, "freeze_feature_encoder"):
        model.freeze_feature_encoder()
    elif hasattr(model, "freeze_encoder"):
        model.freeze_encoder()
    else:
        for parameter in model.get_encoder().parameters():
            parameter.requires_grad = False


def enable_checkpointing(model: Any, setting: Setting) -> None:
    """Switch checkpointing on in the mode of the setting, and the cache off, as the models do themselves."""
    try:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": setting.checkpointing == "reentrant"}
        )
    except ValueError as error:
        raise NotForecastableError(f"{type(model).__name__} has no gradient checkpointing: {error}") from error
