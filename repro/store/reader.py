"""Reading results back: every readable record once, and every line that is not one by name."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from repro.store.records import KINDS, SCHEMA, Record, dump
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


def read(directory: Path, *, containing: str = "", kinds: Collection[str] = KINDS) -> Results:
    """Read all results of a directory, or a single file.

    `containing` skips observations whose line lacks that text, and `kinds` skips records of other kinds, which spares
    parsing what is not asked for. A torn last line is skipped without a word: it is what a killed process leaves.
    Raises ResultsError when there is no such directory, or when a record has a newer schema than this program.
    """
    if not directory.exists():
        raise ResultsError(f"no results at {directory}: run `repro run` or `repro matrix` first, or name --results.")
    paths = sorted(directory.glob("*.jsonl")) if directory.is_dir() else [directory]
    records: list[Record] = []
    damage: list[Damage] = []
    skipped = tuple(_beginning(kind) for kind in KINDS if kind not in kinds)
    with collector_paused():
        for path in paths:
            for item in _lines(path, containing.encode(), skipped):
                (damage if isinstance(item, Damage) else records).append(item)  # type: ignore[arg-type]
        return Results(merge(records), tuple(damage))


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the search for cyclic garbage: records have no cycles, and it would walk through all of them many times.

    For who reads many records, and for who makes much of them before they are let go.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _beginning(kind: str) -> bytes:
    """Return what a line of a kind begins with, as `dump` writes it."""
    return dump({"schema": SCHEMA, "kind": kind})[:-1].encode() + b","


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
    return tuple(sorted(by_id.values(), key=itemgetter("time", "id")))


def _lines(path: Path, containing: bytes, skipped: tuple[bytes, ...]) -> Iterator[Record | Damage]:
    try:
        content = path.read_bytes()
    except OSError as error:
        yield Damage(path, 0, f"cannot be read: {error.strerror}")
        return
    lines = content.split(b"\n")
    torn = lines.pop()
    asked = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if not line.startswith(skipped)
        and line.strip()
        and not (containing and containing not in line and b'"kind":"observation"' in line)
    ]
    for (number, _), value in zip(asked, _parsed([line for _, line in asked]), strict=True):
        yield _checked(path, number, value)
    if torn.strip():
        # A file that another tool made may lack its last line end: a whole record counts, a torn one does not.
        last = _checked(path, len(lines) + 1, _value(torn))
        if not isinstance(last, Damage):
            yield last


def _parsed(lines: Sequence[bytes]) -> list[Any]:
    """Return the value of each line, or the error. Parsed at once, records share their keys: a third of the memory."""
    try:
        values: list[Any] = json.loads(b"[" + b",\n".join(lines) + b"]")
        if len(values) == len(lines):
            return values
    except (ValueError, RecursionError):
        pass
    return [_value(line) for line in lines]


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return error


def _checked(path: Path, number: int, value: Any) -> Record | Damage:
    if isinstance(value, Exception):
        return Damage(path, number, f"not JSON ({value})")
    if not (
        isinstance(value, dict)
        and isinstance(value.get("schema"), int)
        and isinstance(value.get("kind"), str)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("time"), str)
        and isinstance(value.get("cell"), str)
    ):
        return Damage(path, number, "JSON, but not a record of this project")
    if value["schema"] > SCHEMA:
        raise ResultsError(
            f"{path}:{number}: written by a newer version (schema {value['schema']}, this program reads {SCHEMA}). "
            "Upgrade trainer-repro, or choose another --results."
        )
    return value
