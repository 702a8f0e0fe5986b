"""Counts the storages that are alive while a model runs on fake tensors (cell tier)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from repro.forecast.timeline import Log


def _scalar(tensor: torch.Tensor) -> bool | int | float:
    """Answer a question about a number that a fake tensor does not have.

    False answers "is a label out of range?", "is this layer to be dropped?" and "may the mask be left out?" the way
    that costs most memory.
    """
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def _all_of(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(torch.broadcast_shapes(tensor.shape, mask.shape).numel())


def _all_indices(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._local_scalar_dense.default: _scalar,
    torch.ops.aten.masked_select.default: _all_of,
    torch.ops.aten.nonzero.default: _all_indices,
}
"""Operators whose result depends on numbers: answered with the largest result that they can have."""


class Book(TorchDispatchMode):  # type: ignore[misc] # torch is untyped to us
    """A log of births and ends of storages. Enter it inside a `FakeTensorMode`; `begin` starts a log anew."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self._numbers: dict[int, int] = {}
        self._watched: dict[int, weakref.ref[Any]] = {}

    def begin(self) -> Log:
        """Start a new log, which begins with what is alive now, and return it."""
        old, new = self.log, Log()
        for key, number in self._numbers.items():
            self._numbers[key] = len(new.sizes)
            new.sizes.append(old.sizes[number])
            new.kinds.append(old.kinds[number])
            new.events.append(len(new.sizes))
        self.log = new
        return new

    def mark(self, name: str) -> None:
        """Name this moment of the log."""
        self.log.marks[name] = len(self.log.events)

    def label(self, tensors: Iterable[Any], kind: str) -> None:
        """Say what storages are; a storage that was never labelled is an activation."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self._note(tensor)
                self.log.kinds[self._numbers[tensor.untyped_storage()._cdata]] = kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = _ANSWERS.get(func)
        out = func(*args, **(kwargs or {})) if answer is None else answer(*args)
        self._note(out)
        return out

    def _note(self, out: Any) -> None:
        if isinstance(out, torch.Tensor):
            try:
                storage = out.untyped_storage()
            except NotImplementedError:  # tensors inside of vmap have none
                return
            key = storage._cdata
            if key not in self._numbers:
                log = self.log
                self._numbers[key] = len(log.sizes)
                log.sizes.append(storage.nbytes())
                log.kinds.append("activations")
                log.events.append(len(log.sizes))
                self._watched[key] = weakref.ref(storage, lambda _: self._end(key))
        elif isinstance(out, (tuple, list)):
            for each in out:
                self._note(each)

    def _end(self, key: int) -> None:
        del self._watched[key]
        self.log.events.append(-(self._numbers.pop(key) + 1))
