"""Differences between transformers releases that the census meets, found by feature and not by version number."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any


def enable_checkpointing(model: Any, *, use_reentrant: bool) -> None:
    """Switch gradient checkpointing on. 5.24 renames the method; the old name still works there, with a warning."""
    options = {"use_reentrant": use_reentrant}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def disable_checkpointing(model: Any) -> None:
    """Switch gradient checkpointing off again."""
    for name in ("activation_checkpointing_disable", "gradient_checkpointing_disable"):
        if hasattr(model, name):
            with contextlib.suppress(ValueError):  # raised where no part of the model can be switched, on or off
                getattr(model, name)()
            return


def build(model_class: Any, config: Any) -> Any:
    """Build a model with random weights. `_from_config` sets what the constructor leaves out (dtype, attention).

    Some parts of models are classes of their own that ask for the place of a layer as well.
    """
    make = getattr(model_class, "_from_config", None) or model_class
    part = inspect.signature(model_class.__init__).parameters.get("layer_idx")
    return make(config, layer_idx=0) if part and part.default is inspect.Parameter.empty else make(config)


def config_types() -> tuple[Any, ...]:
    """Return the configuration base classes. 5.x renames the class and keeps the old name."""
    from transformers import configuration_utils

    names = ("PreTrainedConfig", "PretrainedConfig")
    return tuple({getattr(configuration_utils, name) for name in names if hasattr(configuration_utils, name)})
