"""Metering on CUDA: the caching allocator's own statistics, and a capacity in a process of its own.

A capacity is a fraction of the device, set for a whole process and for reserved memory, in segments of 2 and 20 MiB.
It is therefore only ever set in a child process that ends with the trial, and it must be generous: at least twice above
what passes, and at least twice below what fails. Bytes measured here are never compared with those of a CPU.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from repro.memory.report import Event, Refusal, lives

LOG_LIMIT = 1 << 20
"""Entries the allocator's history keeps; older ones are dropped."""
_CHILD = "REPRO_CUDA_CHILD"


class CudaUnavailableError(RuntimeError):
    """There is no CUDA device that may be used; the message says why, and what to do."""


def require_device(*, shared: bool = False) -> str:
    """Return what the current device is (GPU, driver, torch), for the record.

    Raises CudaUnavailableError without CUDA, when the device does not answer, and, unless `shared`, when another
    process uses it: its memory would be counted against a capacity, and its timing is not ours.
    """
    if not torch.cuda.is_available():
        raise CudaUnavailableError(
            f"torch {torch.__version__} sees no CUDA device. Run on a machine with one, or meter the emulated device."
        )
    try:
        index = torch.cuda.current_device()
        name = torch.cuda.get_device_name(index)
        uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
    except RuntimeError as error:
        raise CudaUnavailableError(f"the CUDA device does not answer: {error}") from error
    others = other_users(_query("--query-compute-apps=gpu_uuid,pid,used_memory"), uuid, {os.getpid(), os.getppid()})
    if others and not shared:
        raise CudaUnavailableError(
            f"{name} is in use by other processes ({'; '.join(others)}). Wait for them, choose another device with "
            "CUDA_VISIBLE_DEVICES, or say that sharing is meant."
        )
    driver = _query("--query-gpu=driver_version").partition("\n")[0].strip() or "unknown"
    return f"{name}, driver {driver}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def other_users(listing: str, uuid: str, ours: set[int]) -> list[str]:
    """Read a listing of compute processes (lines of `uuid, pid, memory`) and describe those that are not ours."""
    found = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[1].isdigit() and int(parts[1]) not in ours:
            same = not uuid or uuid.removeprefix("GPU-") == parts[0].removeprefix("GPU-")
            if same:
                found.append(f"process {parts[1]}, {parts[2]}")
    return found


def _query(question: str) -> str:
    try:
        command = ["nvidia-smi", question, "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""  # no tool to ask: a container often has none; the device itself still answers or refuses


def settle() -> None:
    """Bring the allocator to rest: garbage collected, work finished, workspaces and cached segments given back."""
    gc.collect()
    torch.cuda.synchronize()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


def warm_up() -> None:
    """Run what makes CUDA's libraries allocate once and for all, so that no trial is charged for it."""
    device = torch.device("cuda")
    weight = torch.randn(256, 256, device=device, requires_grad=True)
    signal = torch.randn(2, 8, 512, device=device, requires_grad=True)
    kernel = torch.randn(8, 8, 3, device=device, requires_grad=True)
    for _ in range(2):
        (weight @ weight).log_softmax(-1).sum().backward()
        torch.nn.functional.conv1d(signal, kernel).sum().backward()
    del weight, signal, kernel
    settle()


class CudaBook:
    """The caching allocator's figures above a baseline; see `repro.memory.meter.Book`.

    A capacity is accepted only in a child process started by `in_child`. Raises CudaUnavailableError or ValueError.
    """

    source = "cuda"
    _stack: ClassVar[list[CudaBook]] = []

    def __init__(self, capacity: int | None) -> None:
        if capacity is not None and _CHILD not in os.environ:
            raise ValueError(
                "a capacity on CUDA holds for a whole process and would leak into the next trial: run this trial "
                "through repro.memory.cuda.in_child"
            )
        self._seen = 0
        self.hardware = require_device(shared=True)
        settle()
        for outer in CudaBook._stack:
            outer._seen = outer.peak
        torch.cuda.reset_peak_memory_stats()
        self._base: int = torch.cuda.memory_allocated()
        self._first = _events_so_far()
        self._capacity = capacity
        if not CudaBook._stack:
            _record_history(True)
        if capacity is not None:
            _cap(torch.cuda.memory_reserved() + capacity)
        CudaBook._stack.append(self)

    @property
    def live(self) -> int:
        """Bytes above the baseline at this moment."""
        allocated: int = torch.cuda.memory_allocated()
        return allocated - self._base

    @property
    def peak(self) -> int:
        """The most bytes above the baseline so far."""
        highest: int = torch.cuda.max_memory_allocated()
        return max(self._seen, highest - self._base)

    @property
    def count(self) -> int:
        """Events so far."""
        return _events_so_far() - self._first

    @contextmanager
    def host(self) -> Iterator[None]:
        """Do nothing: on CUDA, what is the host's is the host's already."""
        yield

    def log(self) -> Sequence[Event]:
        """Return the events from the allocator's history."""
        return self._history()[0]

    def sites(self) -> dict[int, str]:
        """Return the places that events refer to."""
        return self._history()[1]

    def refusals(self) -> tuple[Refusal, ...]:
        """Return the allocations that did not fit."""
        return self._history()[2]

    def peak_event(self) -> int:
        """Return after how many events the log is at its highest."""
        live = lives(self.log())
        return live.index(max(live))

    def _history(self) -> tuple[list[Event], dict[int, str], tuple[Refusal, ...]]:
        traces = torch.cuda.memory._snapshot()["device_traces"]
        entries = traces[torch.cuda.current_device()] if traces else []
        events, sites, refusals = read_history(entries, self._capacity or 0)
        return events[-self.count :] if self.count else [], sites, refusals

    def close(self) -> None:
        """Stop counting. The last one also ends the history and lifts the cap."""
        if self in CudaBook._stack:
            CudaBook._stack.remove(self)
            if self._capacity is not None:
                torch.cuda.set_per_process_memory_fraction(1.0)
            if not CudaBook._stack:
                _record_history(False)


def read_history(
    entries: Sequence[Mapping[str, Any]], capacity: int
) -> tuple[list[Event], dict[int, str], tuple[Refusal, ...]]:
    """Turn the caching allocator's history into events, places and refusals.

    A block is live until `free_completed`: a block that another stream still uses is not free yet.
    """
    events: list[Event] = []
    numbers: dict[str, int] = {}
    refusals: list[Refusal] = []
    live = 0
    for entry in entries:
        action, size = entry["action"], int(entry.get("size", 0))
        if action == "alloc":
            site = numbers.setdefault(_place(entry.get("frames", ())), len(numbers) + 1)
            events.append(Event(int(entry["addr"]), size, site))
            live += size
        elif action == "free_completed":
            events.append(Event(int(entry["addr"]), -size, 0))
            live -= size
        elif action == "oom":
            refusals.append(Refusal(size, live, capacity, len(events)))
    return events, {number: place for place, number in numbers.items()}, tuple(refusals)


def _place(frames: Sequence[Mapping[str, Any]]) -> str:
    named = [frame for frame in frames if str(frame["filename"]).endswith(".py") and "/torch/" not in frame["filename"]]
    short = (f"{'/'.join(frame['filename'].split('/')[-3:])}:{frame['line']} {frame['name']}" for frame in named[:4])
    return " < ".join(short) or "outside of Python"


def _record_history(on: bool) -> None:
    if on:
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=LOG_LIMIT)
    else:
        torch.cuda.memory._record_memory_history(None)


def _events_so_far() -> int:
    statistics = torch.cuda.memory_stats()
    return int(statistics.get("allocation.all.allocated", 0) + statistics.get("allocation.all.freed", 0))


def _cap(nbytes: int) -> None:
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if nbytes >= total:
        raise ValueError(f"a capacity of {nbytes:,} bytes is no cap on a device of {total:,}")
    torch.cuda.set_per_process_memory_fraction(nbytes / total)


def in_child(
    target: str, arguments: Mapping[str, Any], *, capacity: int | None, timeout: float, shared: bool = False
) -> dict[str, Any]:
    """Run `module:function` in a child process on CUDA, metered, and return what it returns.

    The function is called with the open meter and the arguments; both these and its result must be JSON values. The
    result has the report added, as `memory`. Nothing of the child (a cap, a cached segment, a workspace) outlives it.
    Raises CudaUnavailableError where there is no device to use, TimeoutError, and RuntimeError when the child dies.
    """
    require_device(shared=shared)
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        order = json.dumps({"target": target, "arguments": dict(arguments), "capacity": capacity, "to": str(answer)})
        try:
            done = subprocess.run(
                [sys.executable, "-m", "repro.memory.cuda_child"],
                input=order,
                text=True,
                capture_output=True,
                timeout=timeout,
                env={**os.environ, _CHILD: "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{target} did not end within {timeout:g} s on CUDA") from error
        if not answer.exists():
            last = "; ".join(done.stderr.strip().splitlines()[-3:])
            raise RuntimeError(f"{target} died in its CUDA child process (exit code {done.returncode}): {last}")
        return dict(json.loads(answer.read_text()))
