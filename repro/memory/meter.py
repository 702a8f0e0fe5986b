"""One meter, three sources: how many bytes a run needs on its device, and a real out-of-memory error past a capacity.

    from repro.memory.meter import meter

    with meter(capacity=8_000_000) as m:            # an emulated device of eight million bytes, on the CPU
        trainer = make_trainer()                    # Trainer moves its model with `.to(device)`: it is on the device
        with phases_of(trainer, m):                 # names "train step", "evaluation batch" and "gather"
            trainer.train()                         # raises torch.OutOfMemoryError past the capacity
    m.report.peak_bytes, m.report.holders, m.report.peak_of("gather")

Sources:

* `allocator`: a counting CPU allocator. Exact, nearly free; compiled on first use. Sees temporaries inside operators.
* `ledger`: a dispatch mode that keeps a book of storages. Needs no compiler; slower, and sees operators' results only.
* `cuda`: the statistics of CUDA's caching allocator.
* `auto`: `cuda` on CUDA; else the allocator, or the ledger (said once) where the allocator cannot be built.

**The emulated device.** Arithmetic is that of the CPU; what is emulated is the boundary between host and device. A
storage is on the *device* when it was moved there by `Tensor.to(torch.device)`, or computed from device tensors, or
made by a factory (`torch.zeros`) outside a host scope. It is on the *host* when it existed before the meter was
opened, comes from numpy or from a DataLoader, was made inside `m.host()`, or comes from `Tensor.cpu()` or `.to("cpu")`,
which really copy. Only device bytes count, rounded up to 512 as CUDA's caching allocator does.

The two emulated sources differ in three things. Temporaries inside an operator: the allocator's only
(`repro.memory.temporaries` lists them; in the runs of callback-eval-oom it is `_log_softmax_backward_data` in training,
and in evaluation nothing, or, where logits are narrow, `cumsum` of the attention mask). What is computed
from host tensors alone, outside a host scope: host memory to the ledger, device memory to the allocator. Threads
started by hand: seen by the allocator only (autograd's own threads are seen by both).

A capacity holds for the bytes above the baseline, the baseline being what was live when this meter was opened. Exactly
the capacity fits. Meters nest: an inner one measures from its own baseline, and the outer capacity still holds.
Garbage is collected before the baseline is taken, so that an earlier run's is not counted.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Literal, Protocol

from repro.memory.report import HOLDERS, Event, Refusal, Report, Span, holders, lives, phases, timeline
from repro.memory.sites import EVERY_BLOCK, WORTH_TRACING

Device = Literal["emulated", "cuda"]
Source = Literal["auto", "allocator", "ledger", "cuda"]
BLOCK = 512
"""Bytes to which CUDA's caching allocator rounds."""

_open: list[Meter] = []
_said: set[str] = set()


class Book(Protocol):
    """What a source keeps for one meter: exact figures, and the events they come from."""

    source: str
    hardware: str

    @property
    def live(self) -> int:
        """Bytes above the baseline at this moment."""

    @property
    def peak(self) -> int:
        """The most bytes above the baseline so far."""

    @property
    def count(self) -> int:
        """Events so far."""

    def host(self) -> AbstractContextManager[None]:
        """Open a scope in which new storages are the host's."""

    def log(self) -> Sequence[Event]:
        """Return the events that were logged: all of them, or the first ones."""

    def sites(self) -> dict[int, str]:
        """Return the places that events refer to."""

    def peak_event(self) -> int:
        """Return after how many events the peak was first reached."""

    def refusals(self) -> tuple[Refusal, ...]:
        """Return the allocations that did not fit."""

    def close(self) -> None:
        """Stop counting. A second call does nothing."""


class Meter:
    """A running meter; `meter()` makes one. After the `with` block, `report` is what it saw."""

    def __init__(self, device: Device, book: Book, capacity: int | None, granularity: int, *, whole: bool) -> None:
        self._device, self._book, self._capacity, self._granularity = device, book, capacity, granularity
        self._holders = None if whole else HOLDERS
        self._spans: list[Span] = []
        self._report: Report | None = None

    @property
    def source(self) -> str:
        """Name the source that is really used: `allocator`, `ledger` or `cuda`."""
        return self._book.source

    @property
    def live(self) -> int:
        """Bytes on the device now, above the baseline."""
        return self._book.live if self._report is None else self._report.live_bytes

    @property
    def peak(self) -> int:
        """The most bytes on the device so far, above the baseline."""
        return self._book.peak if self._report is None else self._report.peak_bytes

    @property
    def report(self) -> Report:
        """What the meter saw: so far while it is open, and in all once it is closed."""
        return self._report or self._make_report()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what happens inside. Phases may nest; the innermost names what is made in it."""
        start = self._book.count
        try:
            yield
        finally:
            self._spans.append(Span(name, start, self._book.count))

    def host(self) -> AbstractContextManager[None]:
        """Open a scope in which new storages of this thread belong to the host, as what a DataLoader makes does."""
        return self._book.host()

    def close(self) -> None:
        """Stop counting and keep the report. A second call does nothing."""
        if self._report is None:
            self._report = self._make_report()
            self._book.close()
            if self in _open:
                _open.remove(self)

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Inner meters that were left open end with the one around them.
        for inner in _open[: _open.index(self) : -1] if self in _open else ():
            inner.close()
        self.close()

    def _make_report(self) -> Report:
        book = self._book
        log, count = book.log(), book.count
        live, spans = lives(log), tuple(self._spans)
        return Report(
            device=self._device,
            source=book.source,
            capacity=self._capacity,
            granularity=self._granularity,
            peak_bytes=book.peak,
            live_bytes=book.live,
            events=count,
            timeline=timeline(live),
            phases=phases(live, spans),
            holders=holders(log, book.sites(), book.peak_event(), spans, self._holders),
            refusals=book.refusals(),
            complete=len(log) == count,
            hardware=book.hardware,
        )


def meter(
    device: Device = "emulated",
    source: Source = "auto",
    capacity: int | None = None,
    *,
    granularity: int = BLOCK,
    whole: bool = False,
) -> Meter:
    """Open a meter, as a context manager.

    `capacity` is in bytes above the baseline, None for no limit; `granularity` is what sizes are rounded up to, on the
    emulated device. With `whole`, every block is traced and every holder at the peak reported, not only the largest:
    slower. An inner meter traces as the outermost one does.

    Raises ValueError for a size that makes no sense or a source that the device does not have, and
    `repro.memory.allocator.AllocatorUnavailableError` when the allocator was asked for by name and cannot be had.
    On CUDA a capacity holds only in a process of its own: see `repro.memory.cuda`.
    """
    if capacity is not None and (not isinstance(capacity, int) or isinstance(capacity, bool) or capacity <= 0):
        raise ValueError(f"capacity is {capacity!r}; it must be a positive number of bytes, or None for no limit")
    if not isinstance(granularity, int) or granularity <= 0:
        raise ValueError(f"granularity is {granularity!r}; it must be a positive number of bytes")
    if (device == "cuda") != (source == "cuda") and not (device == "cuda" and source == "auto"):
        raise ValueError(
            f"device {device!r} has no source {source!r}: emulated has allocator and ledger, cuda has cuda"
        )
    gc.collect()
    traced = EVERY_BLOCK if whole else WORTH_TRACING
    book = _book(device, source, capacity, granularity, traced)
    opened = Meter(device, book, capacity, granularity, whole=whole)
    _open.append(opened)
    return opened


def close_all() -> int:
    """Close every meter that is still open, the innermost first, and return how many there were.

    For whoever runs trials in one process: a trial that left a meter open must not be metered into the next one.
    """
    left = len(_open)
    while _open:
        _open[-1].close()
    return left


def _book(device: Device, source: Source, capacity: int | None, granularity: int, traced: int) -> Book:
    if device == "cuda":
        from repro.memory import cuda

        return cuda.CudaBook(capacity)
    from repro.memory import allocator, ledger

    if source == "ledger":
        return ledger.open_book(capacity, granularity, traced)
    try:
        return allocator.open_book(capacity, granularity, traced)
    except allocator.AllocatorUnavailableError as error:
        if source == "allocator":
            raise
        _say_once(
            f"memory: no counting allocator here ({error}). Metering with the ledger: slower, and blind to temporaries "
            "inside operators."
        )
        return ledger.open_book(capacity, granularity, traced)


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        print(message, file=sys.stderr, flush=True)
