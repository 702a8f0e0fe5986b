"""Following results while they are written, to know what runs and what is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro.store.records import Record


class Follower:
    """Reads what is appended to a results directory from now on, for one cell; each record once."""

    def __init__(self, directory: Path, cell: str) -> None:
        self._directory = directory
        self._needle = f'"{cell}"'.encode()
        self._cell = cell
        self._offsets = {path: path.stat().st_size for path in directory.glob("*.jsonl")}

    def new(self) -> Iterator[Record]:
        """Yield the whole records that were added since the last call."""
        for path in sorted(self._directory.glob("*.jsonl")):
            offset = self._offsets.get(path, 0)
            if path.stat().st_size == offset:
                continue
            with path.open("rb") as file:
                file.seek(offset)
                chunk = file.read()
            end = chunk.rfind(b"\n") + 1
            self._offsets[path] = offset + end
            for line in chunk[:end].splitlines():
                record = self._parse(line)
                if record is not None:
                    yield record

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        if self._needle not in line:
            return None
        try:
            record = json.loads(line)
        except ValueError:
            return None
        return record if isinstance(record, dict) and record.get("cell") == self._cell else None
