"""Limits of time and memory on a trial, kept by a thread of the same process.

A trial that exceeds one ends its process, after saying so: nothing else stops code that hangs inside a native call, and
memory that was taken too much of is only surely given back by a process that ends. Whoever started the process goes on
with the other trials (pytest-xdist replaces the worker, the matrix starts the rest anew).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

EXIT_CODE = 97
"""Exit code of a process that ended itself over a limit."""

POLL_SECONDS = 0.1
SECONDS = 120.0
BYTES = 6 * 1024**3


@dataclass(frozen=True)
class Limits:
    """What one trial may take: wall-clock seconds, and bytes of resident memory of its process."""

    seconds: float = SECONDS
    bytes: int = BYTES


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class _Watch:
    limits: Limits
    last_words: Callable[[str, str], object]
    began: float

    def check(self) -> None:
        """End the process if a limit is exceeded."""
        seconds, resident = time.monotonic() - self.began, resident_bytes()
        if seconds > self.limits.seconds:
            end, detail = "timed out", f"still running after {self.limits.seconds:g} s"
        elif resident > self.limits.bytes:
            end = "over its memory limit"
            detail = f"{resident / 1024**2:.0f} MiB resident, the limit is {self.limits.bytes / 1024**2:.0f} MiB"
        else:
            return
        try:
            self.last_words(end, detail)
        finally:
            print(f"\nrepro: a trial was ended: {end} ({detail})", file=sys.__stderr__, flush=True)
            faulthandler.dump_traceback(file=2)
            os._exit(EXIT_CODE)


class _Watchdog:
    """One thread for all trials of a process: starting one for each would cost more than a small trial bears."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.watch: _Watch | None = None
        self.thread: threading.Thread | None = None

    def set(self, watch: _Watch | None) -> None:
        """Watch this from now on, or nothing. Waits while a limit that was exceeded is being dealt with."""
        with self.lock:
            self.watch = watch
            if watch and (self.thread is None or not self.thread.is_alive()):
                self.thread = threading.Thread(target=self.run, name="repro-limits", daemon=True)
                self.thread.start()

    def run(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            with self.lock:
                if self.watch:
                    self.watch.check()


_WATCHDOG = _Watchdog()


@contextlib.contextmanager
def enforced(limits: Limits, last_words: Callable[[str, str], object]) -> Iterator[None]:
    """Run the block under limits. Past one, `last_words(end, detail)` is called and the process ends with EXIT_CODE."""
    outer = _WATCHDOG.watch
    _WATCHDOG.set(_Watch(limits, last_words, time.monotonic()))
    try:
        yield
    finally:
        _WATCHDOG.set(outer)
