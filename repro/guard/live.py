"""A live trainer, as failures look at it: the model without wrappers, the arguments under either spelling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.observe.drift import RENAMED

_OLD_NAMES = {new: old for old, new in RENAMED.items()}
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel")


@dataclass(frozen=True)
class Live:
    """What there is of a trainer. A callback sees no trainer: there `callbacks` and `processing` may lack."""

    model: Any
    args: Any
    callbacks: Sequence[Any] = ()
    processing: Any = field(default=None)

    def argument(self, name: str, default: Any = None) -> Any:
        """Return a training argument, by whichever of its names this release has, or the default."""
        for spelling in (name, RENAMED.get(name), _OLD_NAMES.get(name)):
            if spelling and spelling in vars(self.args):
                return vars(self.args)[spelling]
        return default

    @property
    def inner(self) -> Any:
        """The model itself, without LoRA and without what wraps it for several devices."""
        model = self.model
        while type(model).__name__ in _WRAPPERS:
            model = getattr(model, "module", None) or model._orig_mod
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    @property
    def has_adapters(self) -> bool:
        """Tell whether peft wraps the model."""
        model = self.model
        while type(model).__name__ in _WRAPPERS:
            model = getattr(model, "module", None) or model._orig_mod
        return hasattr(model, "get_base_model")

    def is_a(self, name: str) -> bool:
        """Tell whether the model is of a class with this name, or of one derived from it."""
        return any(kind.__name__ == name for kind in type(self.inner).__mro__)


def of(trainer: Any) -> Live:
    """Look at a trainer."""
    handler = getattr(trainer, "callback_handler", None)
    processing = getattr(trainer, "processing_class", None)
    return Live(trainer.model, trainer.args, tuple(getattr(handler, "callbacks", ())), processing)
