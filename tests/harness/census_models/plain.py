# ruff: noqa: ARG002 - the models that misbehave take no notice of their input
"""Tiny models of known behaviour under reentrant checkpointing, and ones that misbehave in their forward.

The one that ends its process comes last: a new process has to import the library again.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class TinyConfig(PretrainedConfig):
    model_type = "census-tiny"

    def __init__(self, hidden_size: int = 64, num_hidden_layers: int = 2, vocab_size: int = 50, **kwargs: Any) -> None:
        self.hidden_size, self.num_hidden_layers, self.vocab_size = hidden_size, num_hidden_layers, vocab_size
        super().__init__(**kwargs)


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, hidden: Any, bias: Any = None) -> Any:
        return torch.tanh(self.linear(hidden) + (0.0 if bias is None else bias * hidden))


class TinyPreTrainedModel(PreTrainedModel):
    config_class = TinyConfig
    base_model_prefix = "tiny"
    supports_gradient_checkpointing = True
    main_input_name = "input_ids"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.bias = nn.Linear(config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config.hidden_size) for _ in range(config.num_hidden_layers))
        self.gradient_checkpointing = False
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(std=0.3)

    def _run(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.gradient_checkpointing and self.training):
            return layer(*args, **kwargs)
        from functools import partial

        return self._gradient_checkpointing_func(partial(layer.__call__, **kwargs), *args)


class SoundModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        hidden = self.embed(input_ids)
        bias = self.bias(hidden)
        for layer in self.layers:
            hidden = self._run(layer, hidden, bias)
        return BaseModelOutput(last_hidden_state=hidden)


class KeywordModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        hidden = self.embed(input_ids)
        bias = self.bias(hidden)
        for layer in self.layers:
            hidden = self._run(layer, hidden, bias=bias)
        return BaseModelOutput(last_hidden_state=hidden)


class CutOffModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        hidden = torch.ones(*input_ids.shape, self.config.hidden_size)
        hidden = self._run(self.layers[0], hidden)
        return BaseModelOutput(last_hidden_state=self.bias(hidden + self.embed(input_ids)))


class DeafModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        return BaseModelOutput(last_hidden_state=self.layers[0](self.embed(input_ids)))


class DoubledModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        hidden = self.embed(input_ids)
        factor = 2.0 if self.gradient_checkpointing else 1.0
        return BaseModelOutput(last_hidden_state=self._run(self.layers[0], hidden * factor))


class RecursesModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        return self.forward(input_ids)


class ReadsInputModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        input("continue? ")


class PrintsModel(SoundModel):
    def forward(self, input_ids: Any) -> Any:
        print('{"event": "nonsense"}', flush=True)
        return super().forward(input_ids)


class SegfaultModel(SoundModel):
    def forward(self, input_ids: Any) -> Any:
        if self.gradient_checkpointing:
            ctypes.string_at(0)
        return super().forward(input_ids)
