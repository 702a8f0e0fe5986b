"""The cells that were built: found, listed, measured, checked and removed."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from repro.cells.cell import Cell, CellError, describe
from repro.cells.locks import BusyError, lock
from repro.cells.places import cells_home
from repro.cells.spec import Spec

Seen = set[tuple[int, int]]


@dataclass(frozen=True)
class Cached:
    """A built cell on disk."""

    id: str
    directory: Path
    document: dict[str, Any]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def used(self) -> datetime.datetime:
        """When it was last used: each use touches its interpreter's note."""
        return datetime.datetime.fromtimestamp((self.directory / "cell.json").stat().st_mtime, datetime.timezone.utc)

    def cell(self) -> Cell:
        """Return it as a cell to run trials in."""
        spec = self.document["spec"]
        built = self.document["built"][:10]
        requested = f"transformers=={spec['transformers']}" + (f" torch=={spec['torch']}" if spec["torch"] else "")
        return Cell(
            self.python,
            self.document["described"],
            requested,
            min(spec["exclude_newer"], built),
            tuple(self.document["notes"]),
        )


@dataclass(frozen=True)
class Disk:
    """Bytes of disk: all that a cell's files take, and what removing it would free (uv shares files between cells)."""

    whole: int
    freed: int


@dataclass(frozen=True)
class Cache:
    """A directory of built cells."""

    root: Path

    @classmethod
    def default(cls) -> Cache:
        """Return the cache that the environment names."""
        return cls(cells_home())

    def directory(self, cell: str) -> Path:
        """Return where a cell is, or would be."""
        return self.root / cell

    def lock_path(self, cell: str) -> Path:
        """Return the file that is locked while a cell is built, used or removed."""
        return self.root / ".locks" / cell

    def find(self, spec: Spec) -> Cell | None:
        """Return the cell of a spec if it is cached and whole."""
        cached = self._load(self.directory(spec.id))
        return cached.cell() if cached and cached.python.exists() else None

    @contextlib.contextmanager
    def using(self, cell: Cell) -> Iterator[None]:
        """Keep a cell from being removed while it is used. A cell from elsewhere is nobody's to remove."""
        directory = cell.python.parent.parent
        if directory.parent != self.root:
            yield
            return
        with lock(self.lock_path(directory.name), shared=True, stop=Event()):
            if not cell.python.exists():
                raise CellError("build", f"{directory} was removed by another process; run again to build it")
            (directory / "cell.json").touch()
            yield

    def cells(self) -> list[Cached]:
        """Return every built cell, in the order of names."""
        if not self.root.is_dir():
            return []
        found = (self._load(path) for path in sorted(self.root.iterdir()) if not path.name.startswith("."))
        return [cached for cached in found if cached is not None]

    def leftovers(self) -> list[Path]:
        """Return what is no cell: builds that were killed, and directories whose note is gone."""
        if not self.root.is_dir():
            return []
        known = {cached.directory for cached in self.cells()}
        return [p for p in sorted(self.root.iterdir()) if p.is_dir() and p not in known and p.name != ".locks"]

    def remove(self, cell: str) -> None:
        """Remove a cell. Raises BusyError while another process uses it, OSError when it cannot be."""
        with lock(self.lock_path(cell)):
            doomed = self.root / f".{cell}.removed.partial"
            self.directory(cell).rename(doomed)
            shutil.rmtree(doomed)

    def remove_leftovers(self) -> int:
        """Remove what killed builds left behind, unless one is under way. Returns how many."""
        removed = 0
        for path in self.leftovers():
            cell = path.name.removeprefix(".").rsplit(".", 2)[0] if path.name.startswith(".") else path.name
            try:
                with lock(self.lock_path(cell)):
                    shutil.rmtree(path)
                    removed += 1
            except BusyError:
                continue
        return removed

    def check(self, cached: Cached) -> str:
        """Return what is wrong with a cell: its python does not run, or versions are not those it was built with."""
        try:
            now = describe(cached.python)
        except CellError as error:
            return str(error)
        then = cached.document["described"]
        changed = [
            f"{name} is {now['resolved'].get(name, 'gone')}, was {version}"
            for name, version in then["resolved"].items()
            if now["resolved"].get(name) != version
        ]
        if changed:
            return "; ".join(changed)
        return "" if now["cell"] == then["cell"] else f"its id is {now['cell']}, was {then['cell']}"

    def _load(self, directory: Path) -> Cached | None:
        try:
            document = json.loads((directory / "cell.json").read_text())
            return Cached(directory.name, directory, document) if "described" in document else None
        except (OSError, ValueError):
            return None


def disk(directory: Path) -> Disk:
    """Return the disk use of a directory. A file with links elsewhere takes space here but removing it frees none."""
    whole = freed = 0
    links: dict[tuple[int, int], list[int]] = {}
    for status in _files(directory):
        size = status.st_blocks * 512
        if status.st_nlink == 1:
            whole += size
            freed += size
            continue
        entry = links.setdefault((status.st_dev, status.st_ino), [0, status.st_nlink, size])
        entry[0] += 1
    for here, everywhere, size in links.values():
        whole += size
        freed += size if here == everywhere else 0
    return Disk(whole, freed)


def together(directories: list[Path]) -> int:
    """Return the bytes that some directories take together, a file that several share counted once."""
    seen: Seen = set()
    total = 0
    for directory in directories:
        for status in _files(directory):
            key = (status.st_dev, status.st_ino)
            if key not in seen:
                seen.add(key)
                total += status.st_blocks * 512
    return total


def _files(directory: Path) -> Iterator[os.stat_result]:
    stack = [str(directory)]
    while stack:
        # A cell may be removed while it is measured.
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False)
