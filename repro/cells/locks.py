"""Locks between processes that share a cache of cells: many may use a cell, one may build or remove it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class BusyError(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold a lock file; it is given up when the process ends, however it ends.

    Raises BusyError when another process holds it and `wait` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise BusyError(str(path)) from None
        yield
    finally:
        os.close(file)
