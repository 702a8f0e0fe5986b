"""The line between host and device on a machine that has only a CPU.

While an emulated device is open, three places of torch are patched: `Tensor.cpu` and `Tensor.to`, which copy across the
line as they would on a GPU, and the DataLoader, whose batches are the host's. `.to("cpu")`, a string, goes to the host;
`.to(torch.device("cpu"))`, the object that a Trainer and accelerate pass around as *the* device, goes to the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter


class EmulatedDevice(Protocol):
    """What the line needs to know of a source that emulates a device."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's storage is on the device."""

    def host(self) -> AbstractContextManager[None]:
        """Open a scope, in this thread, in which new storages are the host's."""

    def device(self) -> AbstractContextManager[None]:
        """Open a scope, in this thread, in which new storages are the device's, whatever they are made from."""

    def forget(self) -> None:
        """Count nothing any more: this process is a forked worker, and what it does is the host's."""


_devices: list[EmulatedDevice] = []
_originals: list[tuple[Any, str, Any]] = []


def draw(device: EmulatedDevice) -> None:
    """Draw the line for a device. Two devices may be open at once: each then sees what the other sees."""
    if not _devices:
        _patch()
    _devices.append(device)


def erase(device: EmulatedDevice) -> None:
    """Take a device off. The last one leaves torch as it was."""
    if device in _devices:
        _devices.remove(device)
        if not _devices:
            _restore()


def holds(tensor: torch.Tensor) -> bool:
    """Tell whether any open device holds a tensor."""
    if len(_devices) == 1:
        return _devices[0].holds(tensor)
    return any(device.holds(tensor) for device in _devices)


def host() -> AbstractContextManager[None]:
    """Open a host scope on every open device."""
    if len(_devices) == 1:
        return _devices[0].host()
    return _on_all([device.host() for device in _devices])


def _device() -> AbstractContextManager[None]:
    if len(_devices) == 1:
        return _devices[0].device()
    return _on_all([device.device() for device in _devices])


@contextmanager
def _on_all(scopes: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as opened:
        for scope in scopes:
            opened.enter_context(scope)
        yield


def _download(tensor: torch.Tensor) -> torch.Tensor:
    with host():
        return tensor.clone()


def _upload(tensor: torch.Tensor) -> torch.Tensor:
    with _device():
        return tensor.clone()


def _patch() -> None:
    plain_cpu, plain_to = torch.Tensor.cpu, torch.Tensor.to
    plain_next, plain_iter = _BaseDataLoaderIter.__next__, DataLoader.__iter__

    def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return _download(self) if holds(self) else plain_cpu(self, *args, **kwargs)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        target = kwargs.get("device", args[0] if args else None)
        if isinstance(target, str) and target == "cpu":
            with host():
                moved = plain_to(self, *args, **kwargs)
            return _download(moved) if holds(moved) else moved
        moved = plain_to(self, *args, **kwargs)
        if isinstance(target, torch.device) and target.type == "cpu" and not holds(moved):
            return _upload(moved)
        return moved

    def next_batch(self: Any) -> Any:
        with host():
            return plain_next(self)

    def start(self: Any) -> Any:
        with host():
            return plain_iter(self)

    for owner, name, patched in (
        (torch.Tensor, "cpu", cpu),
        (torch.Tensor, "to", to),
        (_BaseDataLoaderIter, "__next__", next_batch),
        (DataLoader, "__iter__", start),
    ):
        # Tensor inherits both from a C class; deleting the patch uncovers them again.
        _originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, patched)


def _restore() -> None:
    while _originals:
        owner, name, original = _originals.pop()
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _forget_all() -> None:
    for device in _devices:
        device.forget()


os.register_at_fork(after_in_child=_forget_all)
