"""How checkpointing will run in a live model: on or off, and in which mode; read off the model, not off a version."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from repro.guard.live import Live


def mode_of(function: Any) -> str:
    """Return the mode in which a checkpoint function runs; torch's own default where it was given none."""
    keywords = function.keywords if isinstance(function, functools.partial) else {}
    wanted = keywords.get("use_reentrant")
    if wanted is None:
        from torch.utils.checkpoint import checkpoint

        wanted = inspect.signature(checkpoint).parameters["use_reentrant"].default
    # None is what torch has until it changes its default; it warns then, and takes True.
    return "non-reentrant" if wanted is False else "reentrant"


def on_model(model: Any) -> str:
    """Return the mode in which checkpointing is on in a model now, or `off`."""
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False) is True:
            return mode_of(getattr(module, "_gradient_checkpointing_func", None))
    return "off"


def levels(live: Live) -> dict[str, str]:
    """Return the levels of the factors `checkpointing` and `use_reentrant` that this trainer will train with.

    The arguments are applied last, when training starts, so that theirs is the mode where both enable checkpointing.
    """
    by_method = on_model(live.inner)
    if live.argument("gradient_checkpointing", False):
        wanted = (live.argument("gradient_checkpointing_kwargs") or {}).get("use_reentrant")
        mode = "unset" if wanted is None else str(bool(wanted))
        return {"checkpointing": "arguments" if by_method == "off" else "both", "use_reentrant": mode}
    if by_method == "off":
        return {"checkpointing": "off", "use_reentrant": "unset"}
    return {"checkpointing": "method", "use_reentrant": str(by_method == "reentrant")}
