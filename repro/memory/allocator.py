"""The counting CPU allocator: exact, and nearly free. Compiled once per torch, against torch's own headers.

The library goes to `$XDG_CACHE_HOME/trainer-repro` (`~/.cache/trainer-repro`), named by a digest of its source and of
the torch build. `CXX` names the compiler; without it, `g++`, `c++` and `clang++` are tried.
"""

from __future__ import annotations

import array
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from repro.memory import boundary
from repro.memory.report import Event, Refusal
from repro.memory.sites import SITES, WORTH_TRACING

LOG_LIMIT = 1 << 22
"""Events kept of a run: some hundred megabytes at most. Figures stay exact past it."""
_SOURCE = Path(__file__).with_name("allocator.cpp")
_STANDARDS = ("c++20", "c++17")
_INHERIT, _HOST, _DEVICE = 0, 1, 2
_SITE_OF = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


class AllocatorUnavailableError(RuntimeError):
    """The counting allocator cannot be had here; the message says why."""


def open_book(capacity: int | None, granularity: int, traced: int = WORTH_TRACING) -> AllocatorBook:
    """Count from now on. Raises AllocatorUnavailableError without a compiler, ValueError for another granularity."""
    return AllocatorBook(counting_library(), capacity, granularity, traced)


class AllocatorBook:
    """One level of the counting allocator; see `repro.memory.meter.Book`."""

    source = "allocator"
    hardware = ""
    _device: _AllocatorDevice | None = None
    _granularity = 0

    def __init__(self, library: ctypes.CDLL, capacity: int | None, granularity: int, traced: int) -> None:
        outermost = AllocatorBook._device is None
        if outermost:
            AllocatorBook._granularity = granularity
        elif granularity != AllocatorBook._granularity:
            raise ValueError(f"a nested meter has its outer meter's granularity, {AllocatorBook._granularity} bytes")
        self._library = library
        self._level = library.meter_open(-1 if capacity is None else capacity, granularity, traced)
        self._closed = False
        if outermost:
            AllocatorBook._device = _AllocatorDevice(library)
            boundary.draw(AllocatorBook._device)

    def _read(self) -> ctypes.Array[ctypes.c_int64]:
        figures = (ctypes.c_int64 * 8)()
        self._library.meter_read(self._level, figures)
        return figures

    @property
    def live(self) -> int:
        """Bytes above the baseline at this moment."""
        return int(self._read()[0])

    @property
    def peak(self) -> int:
        """The most bytes above the baseline so far."""
        return int(self._read()[1])

    @property
    def count(self) -> int:
        """Events so far."""
        return int(self._read()[2])

    def peak_event(self) -> int:
        """Return after how many events the peak was first reached."""
        return int(self._read()[4])

    def host(self) -> AbstractContextManager[None]:
        """Open a host scope in this thread."""
        return boundary.host()

    def log(self) -> Sequence[Event]:
        """Copy the events of this level."""
        figures = self._read()
        count = max(0, min(figures[2], figures[5] - figures[3]))
        numbers = array.array("q", bytes(24 * count))
        self._library.meter_copy_events(figures[3], count, numbers.buffer_info()[0])
        flat = iter(numbers)
        return [Event(block, nbytes, site) for block, nbytes, site in zip(flat, flat, flat, strict=True)]

    def sites(self) -> dict[int, str]:
        """Return the places that events refer to."""
        return SITES.names

    def refusals(self) -> tuple[Refusal, ...]:
        """Copy the refusals of this level."""
        figures = self._read()
        count = figures[7] - figures[6]
        numbers = array.array("q", bytes(32 * count))
        self._library.meter_copy_refusals(figures[6], count, numbers.buffer_info()[0])
        flat = iter(numbers)
        return tuple(
            Refusal(wanted, live, capacity, event - figures[3])
            for wanted, live, capacity, event in zip(flat, flat, flat, flat, strict=True)
        )

    def close(self) -> None:
        """Stop counting on this level."""
        if self._closed:
            return
        self._closed = True
        self._library.meter_close()
        if self._level == 1 and AllocatorBook._device is not None:
            boundary.erase(AllocatorBook._device)
            AllocatorBook._device = None


class _Scope:
    """A scope of this thread. Opened for every tensor that crosses the line: a generator would cost as much again."""

    __slots__ = ("_before", "_change", "_wanted")

    def __init__(self, change: Callable[[int], int], wanted: int) -> None:
        self._change, self._wanted = change, wanted

    def __enter__(self) -> None:
        self._before = self._change(self._wanted)

    def __exit__(self, *_: object) -> None:
        self._change(self._before)


class _AllocatorDevice:
    """The allocator as `boundary` sees it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def holds(self, tensor: torch.Tensor) -> bool:
        try:
            data = tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # a batched or a wrapped tensor has no storage to point to
            return False
        return bool(data) and bool(self._library.meter_holds(data))

    def host(self) -> AbstractContextManager[None]:
        return self._scope(_HOST)

    def device(self) -> AbstractContextManager[None]:
        return self._scope(_DEVICE)

    def _scope(self, wanted: int) -> _Scope:
        return _Scope(self._library.meter_scope, wanted)

    def forget(self) -> None:
        self._library.meter_forget()


def _site_of(nbytes: int) -> int:  # noqa: ARG001 - the signature is the library's
    return SITES.current()


_SITE_CALLBACK = _SITE_OF(_site_of)


@functools.lru_cache(maxsize=1)
def counting_library() -> ctypes.CDLL:
    """Build, load and set up the library, once per process. Raises AllocatorUnavailableError where it cannot be had."""
    path = build()
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # a damaged file in the cache: build it anew
        path.unlink(missing_ok=True)
        try:
            library = ctypes.CDLL(str(build()))
        except OSError as error:
            raise AllocatorUnavailableError(f"the compiled allocator cannot be loaded: {error}") from error
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    signatures = {
        "meter_setup": ([_SITE_OF, word], None),
        "meter_open": ([word, word, word], word),
        "meter_close": ([], None),
        "meter_read": ([word, ctypes.POINTER(word)], None),
        "meter_copy_events": ([word, word, pointer], None),
        "meter_copy_refusals": ([word, word, pointer], None),
        "meter_holds": ([pointer], word),
        "meter_window": ([], word),
        "meter_read_window": ([ctypes.POINTER(word)], None),
        "meter_scope": ([word], word),
        "meter_forget": ([], None),
    }
    for name, (takes, gives) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = takes, gives
    library.meter_setup(_SITE_CALLBACK, LOG_LIMIT)
    return library


def build(cache: Path | None = None) -> Path:
    """Return the compiled library, compiling it if the cache lacks it.

    Raises AllocatorUnavailableError when there is no compiler, or when it fails; the message ends with its last words.
    """
    compiler = _compiler()
    digest = hashlib.sha256("\n".join((_SOURCE.read_text(), torch.__version__, torch.__file__)).encode()).hexdigest()
    target = (cache or _cache()) / f"allocator-{digest[:16]}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            _compile(compiler, made)
            made.replace(target)  # at once, so that a process that looks on never loads half a file
    return target


def _cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainer-repro"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="trainer-repro-"))


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else ("g++", "c++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    raise AllocatorUnavailableError(f"no C++ compiler: {named or 'g++, c++ and clang++ are'} not found")


def _compile(compiler: str, target: Path) -> None:
    root = Path(torch.__file__).parent
    last_words = ""
    for standard in _STANDARDS:  # headers since torch 2.11 need C++20; older compilers know C++17 only
        command = [
            compiler,
            f"-std={standard}",
            "-O2",
            "-shared",
            "-fPIC",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            f"-I{root / 'include'}",
            str(_SOURCE),
            "-o",
            str(target),
            f"-L{root / 'lib'}",
            "-lc10",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AllocatorUnavailableError(f"{compiler} could not be run: {error}") from error
        if done.returncode == 0:
            return
        last_words = "; ".join(done.stderr.strip().splitlines()[-2:]) or f"exit code {done.returncode}"
    raise AllocatorUnavailableError(f"{compiler} failed: {last_words}")
