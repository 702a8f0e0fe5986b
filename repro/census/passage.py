"""Looking closely at what is checkpointed: which live tensors travel past the arguments of the checkpoint function.

Reentrant checkpointing cuts the graph at tensors that are positional arguments of their own. A tensor that needs a
gradient and travels in a keyword, in a closure, or inside a positional tuple keeps its live graph. `Passage` names such
tensors, and with `by_position=True` passes them as arguments of their own instead: if that cures a model, the mechanism
is proved. Where no argument of its own needs a gradient, reentrant checkpointing gives the layer's parameters none;
`with_live_inputs=True` makes one need it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Passage:
    """How calls are passed on to the checkpoint function, and what was seen of their arguments. Counts are of calls."""

    by_position: bool = False
    with_live_inputs: bool = False
    layers: set[str] = field(default_factory=set)
    travelling: dict[str, int] = field(default_factory=dict)
    caches: dict[str, int] = field(default_factory=dict)
    cut_off: dict[str, int] = field(default_factory=dict)

    def __call__(
        self, checkpoint: Callable[..., Any], function: Any, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        """Note one call of the checkpoint function, and pass it on."""
        layer, keywords = _layer(function), _keywords(function)
        self.layers.add(layer)
        hidden = [*_tensors(keywords, ""), *_tensors_inside(args)]
        for name, _ in [*hidden, *_closure_tensors(function)]:
            _count(self.travelling, f"{layer}: {name}")
        for name, value in keywords.items():
            if value is not None and "Cache" in type(value).__name__:
                _count(self.caches, f"{layer}: {name} ({type(value).__name__})")
        if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in args):
            _count(self.cut_off, layer)
        if self.with_live_inputs:
            args = tuple(_live(value) for value in args)
        if self.by_position and hidden:
            return _call_by_position(checkpoint, function, args, keywords, options)
        return checkpoint(function, *args, **options)


def _live(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.requires_grad:
        return value.detach().clone().requires_grad_()
    return value


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1


def _layer(function: Any) -> str:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.args[0] if inner.args and isinstance(inner.args[0], torch.nn.Module) else inner.func
    owner = inner if isinstance(inner, torch.nn.Module) else getattr(inner, "__self__", None)
    if owner is not None:
        return type(owner).__name__
    for _, value in _cells(inner):
        if isinstance(value, torch.nn.Module):
            return type(value).__name__
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def _keywords(function: Any) -> dict[str, Any]:
    return dict(function.keywords) if isinstance(function, functools.partial) else {}


def _cells(function: Any) -> list[tuple[str, Any]]:
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not closure:
        return []
    found = []
    for name, cell in zip(code.co_freevars, closure, strict=True):
        with contextlib.suppress(ValueError):  # not bound yet
            found.append((name, cell.cell_contents))
    return found


def _closure_tensors(function: Any) -> list[tuple[str, Any]]:
    return [(f"{name} (closure)", tensor) for key, value in _cells(function) for name, tensor in _tensors(value, key)]


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors with a gradient inside tuples, lists and dicts. Parameters stay out: they are leaves."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad and not value.is_leaf:
            yield name, value
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}[{index}]")
    elif type(value) is dict:
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key))


def _tensors_inside(args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for index, value in enumerate(args):
        if not isinstance(value, torch.Tensor):
            yield from _tensors(value, f"argument {index}")


def _call_by_position(
    checkpoint: Callable[..., Any], function: Any, args: Any, keywords: dict[str, Any], options: Mapping[str, Any]
) -> Any:
    plain = functools.partial(function.func, *function.args) if isinstance(function, functools.partial) else function
    nested_args = [None if isinstance(value, torch.Tensor) else value for value in args]
    hidden = [tensor for _, tensor in _tensors([keywords, nested_args], "")]
    first = len(hidden)

    def call(*given: Any) -> Any:
        arrived = iter(given[:first])
        new_keywords, new_nested = _replaced([keywords, nested_args], arrived)
        new_args = [old if isinstance(old, torch.Tensor) else new for old, new in zip(given[first:], new_nested)]  # noqa: B905
        return plain(*new_args, **new_keywords)

    # Nested values are rebuilt from `nested_args`; their places are kept by what was given.
    return checkpoint(call, *hidden, *args, **options)


def _replaced(value: Any, arrived: Iterator[Any]) -> Any:
    """Rebuild a structure with its live tensors replaced, in the order in which `_tensors` yields them."""
    if isinstance(value, torch.Tensor):
        return next(arrived) if value.requires_grad and not value.is_leaf else value
    if isinstance(value, (tuple, list)):
        items = [_replaced(item, arrived) for item in value]
        return items if isinstance(value, list) else type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value) is dict:
        return {key: _replaced(item, arrived) for key, item in value.items()}
    return value
