# ruff: noqa: ARG002 - the models that misbehave take no notice of their input
"""Tiny models that end or block their process, some only when checkpointed."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from .plain import SoundModel, TinyPreTrainedModel


class HangsModel(SoundModel):
    def forward(self, input_ids: Any) -> Any:
        if self.gradient_checkpointing:
            time.sleep(3600)
        return super().forward(input_ids)


class EatsMemoryModel(SoundModel):
    def forward(self, input_ids: Any) -> Any:
        eaten = []
        while self.gradient_checkpointing:
            eaten.append(bytearray(b"x" * 2**26))
        return super().forward(input_ids)


class SegfaultsAnywayModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        ctypes.string_at(0)


class EatsMemoryAnywayModel(TinyPreTrainedModel):
    def forward(self, input_ids: Any) -> Any:
        eaten = []
        while True:
            eaten.append(bytearray(b"x" * 2**26))
