"""Everything that is called differently from release to release, found by looking, never by version number."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from repro.observe.raised import RefusedError

# Old name to new, where an argument was renamed and both mean the same.
RENAMED = {
    "eval_strategy": "evaluation_strategy",
    "use_cpu": "no_cuda",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}


def has_argument(arguments: type, name: str) -> bool:
    """Tell whether training arguments have this very name in this release."""
    return name in {field.name for field in dataclasses.fields(arguments)}


def argument(arguments: type, name: str) -> str:
    """Return the spelling of a training argument in this release. Raises RefusedError when it has neither."""
    fields = {field.name for field in dataclasses.fields(arguments)}
    for spelling in (name, RENAMED.get(name, name)):
        if spelling in fields:
            return spelling
    raise RefusedError(f"{arguments.__name__} has no argument {name!r} in this release")


def spelled(arguments: type, **values: Any) -> dict[str, Any]:
    """Return training arguments with each name as this release spells it."""
    return {argument(arguments, name): value for name, value in values.items()}


def tokenizer_argument(trainer: type) -> str:
    """Return what a Trainer calls the object that processes inputs: `processing_class`, before that `tokenizer`."""
    names = inspect.signature(trainer).parameters
    for spelling in ("processing_class", "tokenizer"):
        if spelling in names:
            return spelling
    raise RefusedError(f"{trainer.__name__} takes neither processing_class nor tokenizer")


def enable_checkpointing(enable: Callable[..., None], use_reentrant: bool | None) -> None:
    """Call a model's `gradient_checkpointing_enable`, with the mode only when one is asked for."""
    if use_reentrant is None:
        enable()
    else:
        enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
