"""Locks between processes that share a cache of cells: many may use a cell, one may build or remove it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event

POLL_SECONDS = 0.2


class BusyError(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def lock(path: Path, *, shared: bool = False, stop: Event | None = None) -> Iterator[None]:
    """Hold a lock file; it is given up when the process ends, however it ends.

    Waits for others until `stop` is set; without `stop` it does not wait. Raises BusyError when it did not get it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        while not _taken(file, shared):
            # Not a blocking call, which a Ctrl-C would not end.
            if stop is None or stop.wait(POLL_SECONDS):
                raise BusyError(str(path))
        yield
    finally:
        os.close(file)


def _taken(file: int, shared: bool) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
