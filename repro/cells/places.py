"""Where things are: the cache of cells, this package as a cell sees it, and the suite of trials."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path

import repro

PACKAGE = Path(repro.__file__).resolve().parent


def cache_home() -> Path:
    """Return the directory for what can be made again, by the platform's custom."""
    if sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        home = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "trainer-repro"


def cells_home() -> Path:
    """Return the directory of built cells: `REPRO_CELLS`, or a place in the platform's cache directory."""
    chosen = os.environ.get("REPRO_CELLS")
    return Path(chosen).expanduser().absolute() if chosen else cache_home() / "cells"


def in_source_tree() -> bool:
    """Tell whether this package runs from a checkout of its source, not from an installed wheel."""
    return (PACKAGE.parent / "pyproject.toml").is_file()


def suite() -> Path:
    """Return the directory of the cases that pytest runs in every cell: a checkout's, or the copy in the wheel."""
    inside = PACKAGE / "suite"
    return inside if inside.is_dir() else PACKAGE.parent / "tests" / "failures"


def python_path() -> Path:
    """Return a directory that holds this package and nothing else, for a cell's `PYTHONPATH`.

    The desk's own site-packages must never be on it: its libraries would shadow those of the cell.
    """
    directory = cache_home() / "python-path" / hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:12]
    link = directory / PACKAGE.name
    if not link.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was faster
            link.symlink_to(PACKAGE, target_is_directory=True)
    return directory
