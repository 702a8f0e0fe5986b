"""Watching the checkpoint function: whether it ran, in which mode, and which tensors it was given in which way.

This proves that a setting took effect. The mode is read off the autograd graph, not off the argument; a tensor that
travels by keyword is one that reentrant checkpointing does not detach.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint

CHECKPOINT = torch.utils.checkpoint.checkpoint

RUNS_PER_CALL = 8
"""Runs of checkpointed code per call from which a backward counts as endless: a sound one makes two.

Small, because each nested backward takes a thread of its own past a depth of 60, and a process with those was
seen to abort at its end.
"""


class EndlessError(RuntimeError):
    """Checkpointed code is recomputed without an end: each backward walks into another."""


@dataclass
class Sightings:
    """What the checkpoint function was seen to do. Counts are of calls."""

    calls: int = 0
    runs: int = 0
    modes: set[str] = field(default_factory=set)
    arguments: set[str] = field(default_factory=set)
    live_keywords: dict[str, int] = field(default_factory=dict)
    live_positional: dict[int, int] = field(default_factory=dict)

    def as_facts(self) -> dict[str, Any]:
        """Return the sightings as JSON values."""
        return {
            "checkpoint_calls": self.calls,
            "checkpoint_runs": self.runs,
            "checkpoint_modes": sorted(self.modes),
            "use_reentrant_argument": sorted(self.arguments),
            "live_keywords": sorted(self.live_keywords),
        }


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)


def _keywords(function: Any, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(function, partial):
        yield from function.keywords.items()
        yield from _keywords(function.func, {})
    yield from given.items()


def _mode(result: Any) -> str:
    """Name the mode in which a result was made: a reentrant call leaves its own node in the autograd graph."""
    nodes = [tensor.grad_fn for tensor in _tensors(result) if tensor.grad_fn is not None]
    if not nodes:
        return "no gradient"
    names = {type(node).__name__ for node in nodes}
    return "reentrant" if "CheckpointFunctionBackward" in names else "non-reentrant"


Pass = Callable[..., Any]
"""Is given the checkpoint function and, what it was called with (function, arguments, options); returns the result."""


def _straight(checkpoint: Callable[..., Any], function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return checkpoint(function, *args, **options)


def _holding(function: Callable[..., Any]) -> list[Any]:
    return [m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get("checkpoint") is function]


@contextlib.contextmanager
def watching(passing: Pass = _straight) -> Iterator[Sightings]:
    """Watch every call of `torch.utils.checkpoint.checkpoint` inside the block, by whichever name a module holds it.

    `passing` may look closer at a call, and change how it is passed on. A backward that recomputes without an end is
    stopped by an EndlessError.
    """
    seen = Sightings()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **keywords: Any) -> Any:
            seen.runs += 1
            if seen.runs > RUNS_PER_CALL * seen.calls:
                raise EndlessError(f"{seen.runs} runs of checkpointed code in {seen.calls} calls")
            return function(*args, **keywords)

        return run

    def checkpoint(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return CHECKPOINT(counted(function), *args, **options)

    def spying(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        seen.calls += 1
        seen.arguments.add(str(keywords.get("use_reentrant", "unset")))
        for name, value in _keywords(function, keywords):
            if any(tensor.requires_grad for tensor in _tensors(value)):
                seen.live_keywords[name] = seen.live_keywords.get(name, 0) + 1
        for index, value in enumerate(args):
            if any(tensor.requires_grad for tensor in _tensors(value)):
                seen.live_positional[index] = seen.live_positional.get(index, 0) + 1
        result = passing(checkpoint, function, args, keywords)
        seen.modes.add(_mode(result))
        return result

    for module in _holding(CHECKPOINT):
        module.__dict__["checkpoint"] = spying
    try:
        yield seen
    finally:
        # A module that was first imported inside the block took the spy for the function itself.
        for module in _holding(spying):
            module.__dict__["checkpoint"] = CHECKPOINT
