"""Reading results back: every readable record once, and every line that is not one by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from repro.store.records import SCHEMA, Record, dump
from repro.store.writer import ResultsError


@dataclass(frozen=True)
class Damage:
    """A line of a results file that is not a record."""

    path: Path
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}"


@dataclass(frozen=True)
class Results:
    """Records in the order of their time, and what could not be read."""

    records: tuple[Record, ...]
    damage: tuple[Damage, ...]

    def of_kind(self, kind: str, failure: str | None = None) -> Iterator[Record]:
        """Yield the records of one kind, of one failure or of all."""
        for record in self.records:
            if record["kind"] == kind and (failure is None or record.get("failure") == failure):
                yield record


def read(directory: Path, *, containing: str = "") -> Results:
    """Read all results of a directory, or a single file.

    `containing` skips observations whose line lacks that text, which spares parsing what is not asked for. A torn last
    line is skipped without a word: it is what a killed process leaves. Raises ResultsError when there is no such
    directory, or when a record has a newer schema than this program.
    """
    if not directory.exists():
        raise ResultsError(f"no results at {directory}: run `repro run` or `repro matrix` first, or name --results.")
    paths = sorted(directory.glob("*.jsonl")) if directory.is_dir() else [directory]
    records: list[Record] = []
    damage: list[Damage] = []
    for path in paths:
        for item in _lines(path, containing.encode()):
            (damage if isinstance(item, Damage) else records).append(item)  # type: ignore[arg-type]
    return Results(merge(records), tuple(damage))


def merge(*parts: Iterable[Record]) -> tuple[Record, ...]:
    """Merge records by id, ordered by time. Merging is commutative, associative and idempotent.

    Should two different records bear one id, the one whose text sorts first stays: any rule does, if it is a rule.
    """
    by_id: dict[str, Record] = {}
    for part in parts:
        for record in part:
            known = by_id.get(record["id"])
            if known is None or (known is not record and known != record and dump(record) < dump(known)):
                by_id[record["id"]] = record
    return tuple(sorted(by_id.values(), key=lambda record: (record["time"], record["id"])))


def _lines(path: Path, containing: bytes) -> Iterator[Record | Damage]:
    try:
        content = path.read_bytes()
    except OSError as error:
        yield Damage(path, 0, f"cannot be read: {error.strerror}")
        return
    lines = content.split(b"\n")
    torn = lines.pop()
    for number, line in enumerate(lines, 1):
        if not line.strip() or (containing and containing not in line and b'"kind":"observation"' in line):
            continue
        yield _parse(path, number, line)
    if torn.strip():
        # A file that another tool made may lack its last line end: a whole record counts, a torn one does not.
        last = _parse(path, len(lines) + 1, torn)
        if not isinstance(last, Damage):
            yield last


def _parse(path: Path, number: int, line: bytes) -> Record | Damage:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Damage(path, number, f"not JSON ({error})")
    if not isinstance(record, dict) or not all(
        isinstance(record.get(key), kind)
        for key, kind in (("schema", int), ("kind", str), ("id", str), ("time", str), ("cell", str))
    ):
        return Damage(path, number, "JSON, but not a record of this project")
    if record["schema"] > SCHEMA:
        raise ResultsError(
            f"{path}:{number}: written by a newer version (schema {record['schema']}, this program reads {SCHEMA}). "
            "Upgrade trainer-repro, or choose another --results."
        )
    return record
