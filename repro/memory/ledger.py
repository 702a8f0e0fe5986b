"""The ledger: a book of live storages kept by a dispatch mode. Needs no compiler; sees operators from outside only.

An operator's results are charged when it returns, so what it allocates and frees within itself is not seen. A storage
is struck off when its last reference goes, by a weak reference to it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from repro.memory import boundary
from repro.memory.allocator import LOG_LIMIT
from repro.memory.drift import OutOfMemoryError
from repro.memory.report import Event, Refusal
from repro.memory.sites import SITES, WORTH_TRACING

_FRESH, _ALIAS, _LIFT, _RESIZE = range(4)


def open_book(capacity: int | None, granularity: int, traced: int = WORTH_TRACING) -> LedgerBook:
    """Keep a book from now on, in this thread and in what autograd starts from it."""
    return LedgerBook(capacity, granularity, traced)


class LedgerBook:
    """One level of the ledger; see `repro.memory.meter.Book`."""

    source = "ledger"
    hardware = ""
    _mode: _Ledger | None = None

    def __init__(self, capacity: int | None, granularity: int, traced: int) -> None:
        self._outermost = LedgerBook._mode is None
        mode = LedgerBook._mode
        if mode is None:
            mode = LedgerBook._mode = _Ledger(granularity, traced)
            mode.__enter__()
            boundary.draw(mode)
        elif granularity != mode.granularity:
            raise ValueError(f"a nested meter has its outer meter's granularity, {mode.granularity} bytes")
        self._ledger = mode
        self._level = _Level(mode.live, capacity, mode.count, len(mode.refusals))
        mode.levels.append(self._level)
        self._closed = False

    @property
    def live(self) -> int:
        """Bytes above the baseline at this moment."""
        return self._ledger.live - self._level.base

    @property
    def peak(self) -> int:
        """The most bytes above the baseline so far."""
        return self._level.peak

    @property
    def count(self) -> int:
        """Events so far."""
        return self._ledger.count - self._level.first_event

    def peak_event(self) -> int:
        """Return after how many events the peak was first reached."""
        return self._level.peak_event

    def host(self) -> AbstractContextManager[None]:
        """Open a host scope in this thread."""
        return boundary.host()

    def log(self) -> Sequence[Event]:
        """Copy the events of this level."""
        return [Event(*event) for event in self._ledger.events[self._level.first_event :]]

    def sites(self) -> dict[int, str]:
        """Return the places that events refer to."""
        return SITES.names

    def refusals(self) -> tuple[Refusal, ...]:
        """Copy the refusals of this level."""
        first = self._level.first_event
        return tuple(
            Refusal(each.wanted, each.live, each.capacity, each.event - first)
            for each in self._ledger.refusals[self._level.first_refusal :]
        )

    def close(self) -> None:
        """Stop keeping this level."""
        if self._closed:
            return
        self._closed = True
        self._ledger.levels.remove(self._level)
        if self._outermost:
            boundary.erase(self._ledger)
            self._ledger.__exit__(None, None, None)
            LedgerBook._mode = None


class _Level:
    __slots__ = ("base", "capacity", "first_event", "first_refusal", "peak", "peak_event")

    def __init__(self, base: int, capacity: int | None, first_event: int, first_refusal: int) -> None:
        self.base, self.capacity = base, capacity
        self.first_event, self.first_refusal = first_event, first_refusal
        self.peak = self.peak_event = 0


class _Entry(weakref.ref[Any]):
    """A weak reference to a device storage, with what the book says about it."""

    __slots__ = ("block", "key", "nbytes")
    block: int
    key: int
    nbytes: int


class _Ledger(TorchDispatchMode):  # type: ignore[misc] # torch is untyped to us
    """The book of all levels. `book` maps a storage's address to its entry; what is not in it is the host's."""

    def __init__(self, granularity: int, traced: int) -> None:
        super().__init__()
        self.granularity = granularity
        self.traced = traced
        self.levels: list[_Level] = []
        self.live = self.count = 0
        self.events: list[tuple[int, int, int]] = []
        self.refusals: list[Refusal] = []
        self._book: dict[int, _Entry] = {}
        self._blocks = 0
        self._scopes = threading.local()
        self._forgotten = False
        self._kinds: dict[Any, int] = {}
        self._on_death: Callable[[_Entry], None] = self._strike_off

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Newer releases of torch would wrap the method below for the compiler's sake: seconds at the first operator,
        # for importing it, and microseconds at every one.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        if kind == _ALIAS:
            return func(*args, **kwargs) if kwargs else func(*args)
        scope = getattr(self._scopes, "scope", "")
        if scope == "host" or self._forgotten:
            return func(*args, **kwargs) if kwargs else func(*args)
        inputs: list[int] = []
        if kind != _LIFT:
            _collect(args, inputs)
            if kwargs:
                _collect(kwargs.values(), inputs)
            out = func(*args, **kwargs) if kwargs else func(*args)
        else:
            out = func(*args)
        if not inputs or scope == "device" or not self._book.keys().isdisjoint(inputs):
            try:
                if isinstance(out, torch.Tensor):
                    self._note(out, inputs, func, kind, self.live)
                else:
                    self._charge_all(out, inputs, func, kind)
            except OutOfMemoryError:
                del out  # as after a failed allocation: nothing new is left behind
                raise
        return out

    def _charge_all(self, out: Any, inputs: list[int], func: Any, kind: int) -> None:
        before = self.live
        for each in out if isinstance(out, (tuple, list)) else ():
            if isinstance(each, torch.Tensor):
                self._note(each, inputs, func, kind, before)
            else:
                self._charge_all(each, inputs, func, kind)

    def _note(self, tensor: torch.Tensor, inputs: list[int], func: Any, kind: int, before: int) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a batched tensor, as vmap makes them, has no storage of its own
            return
        key = storage._cdata
        entry = self._book.get(key)
        nbytes = storage.nbytes()
        charged = -(-nbytes // self.granularity) * self.granularity
        if entry is None:
            # What numpy lent cannot be resized, and an unknown storage that went in is the host's.
            if not nbytes or not storage.resizable() or (key in inputs and kind != _RESIZE):
                return
            self._grow(charged, before, func)
            entry = _Entry(storage, self._on_death)
            entry.key, entry.block, entry.nbytes = key, self._blocks, charged
            self._book[key] = entry
        elif charged != entry.nbytes:
            # The new block is made before the old one goes, as torch does it.
            old_block, old_bytes = entry.block, entry.nbytes
            if charged:
                self._grow(charged, before, func)
            entry.block, entry.nbytes = self._blocks, charged
            self._shrink(old_block, old_bytes)

    def _grow(self, nbytes: int, before: int, func: Any) -> None:
        now = self.live + nbytes
        count = self.count
        for level in self.levels:
            if level.capacity is not None and now - level.base > level.capacity:
                refusal = Refusal(nbytes, before - level.base, level.capacity, count)
                self.refusals.append(refusal)
                raise OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {nbytes} bytes in {func}. The emulated device has a total "
                    f"capacity of {level.capacity} bytes, of which {level.capacity - self.live + level.base} bytes are "
                    "free."
                )
        self.live = now
        self.count = count = count + 1
        for level in self.levels:
            if now - level.base > level.peak:
                level.peak, level.peak_event = now - level.base, count - level.first_event
        self._blocks += 1
        worth_it = not self.traced or nbytes * self.traced >= self.levels[-1].peak
        site = SITES.current(func) if worth_it else 0
        if len(self.events) < LOG_LIMIT:
            self.events.append((self._blocks, nbytes, site))

    def _shrink(self, block: int, nbytes: int) -> None:
        if nbytes:
            self.live -= nbytes
            self.count += 1
            if len(self.events) < LOG_LIMIT:
                self.events.append((block, -nbytes, 0))

    def _strike_off(self, entry: _Entry) -> None:
        if self._book.get(entry.key) is entry:
            del self._book[entry.key]
            self._shrink(entry.block, entry.nbytes)

    # --- as `boundary` sees it ---

    def holds(self, tensor: torch.Tensor) -> bool:
        try:
            return tensor.untyped_storage()._cdata in self._book
        except (NotImplementedError, RuntimeError):
            return False

    def host(self) -> AbstractContextManager[None]:
        return self._scope("host")

    def device(self) -> AbstractContextManager[None]:
        return self._scope("device")

    @contextmanager
    def _scope(self, wanted: str) -> Iterator[None]:
        before = getattr(self._scopes, "scope", "")
        self._scopes.scope = wanted
        try:
            yield
        finally:
            self._scopes.scope = before

    def forget(self) -> None:
        self._forgotten = True


def _kind(func: Any) -> int:
    """Tell, from an operator's schema, whether its results can be new storages."""
    name = func.name().split("::")[-1].split(".")[0]
    if name == "lift_fresh":
        return _LIFT
    if name.startswith(("resize", "set_")) or any(each.is_out for each in func._schema.arguments):
        return _RESIZE
    returns = func._schema.returns
    return _ALIAS if returns and all(each.alias_info is not None for each in returns) else _FRESH


def _collect(values: Any, found: list[int]) -> None:
    """Gather the addresses of the storages that go into an operator."""
    for value in values:
        if isinstance(value, torch.Tensor):
            try:
                found.append(value.untyped_storage()._cdata)
            except NotImplementedError:
                found.append(0)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
