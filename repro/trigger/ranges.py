"""Releases that behave alike: neighbouring releases of which no configuration tells one from another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from repro.trigger.table import CellTable, Row
from repro.vocabulary import Configuration, Scope


@dataclass(frozen=True)
class Range:
    """Tables of neighbouring releases, oldest first, all of one scope, torch and device, that never contradict."""

    tables: tuple[CellTable, ...]

    @property
    def scope(self) -> Scope:
        """The scope of all its tables."""
        return self.tables[0].scope

    @property
    def releases(self) -> tuple[str, ...]:
        """The observed releases, oldest first."""
        return tuple(dict.fromkeys(table.transformers for table in self.tables))

    @property
    def torch(self) -> str:
        """The torch of all its tables."""
        return self.tables[0].torch

    @property
    def device(self) -> str:
        """The device of all its tables."""
        return self.tables[0].device

    @property
    def rows(self) -> dict[Configuration, Row]:
        """Every configuration that any of the releases saw, with a row of the first that did."""
        together: dict[Configuration, Row] = {}
        for table in self.tables:
            for configuration, row in table.rows.items():
                together.setdefault(configuration, row)
        return together


def ranges(tables: Iterable[CellTable]) -> list[Range]:
    """Join neighbouring releases as long as they saw some configuration both, and none with different outcomes."""
    groups: dict[tuple[Scope, str, str], list[CellTable]] = {}
    for table in tables:
        groups.setdefault((table.scope, table.device, table.torch), []).append(table)
    found: list[Range] = []
    for key in sorted(groups):
        found += _joined(sorted(groups[key], key=lambda table: (_version(table.transformers), table.cell)))
    return found


def _joined(tables: list[CellTable]) -> list[Range]:
    found: list[Range] = []
    for table in tables:
        if found and _alike(found[-1], table):
            found[-1] = Range((*found[-1].tables, table))
        else:
            found.append(Range((table,)))
    return found


def _alike(known: Range, table: CellTable) -> bool:
    seen = [
        earlier.rows[configuration].outcome == row.outcome
        for earlier in known.tables
        for configuration, row in table.rows.items()
        if configuration in earlier.rows
    ]
    return bool(seen) and all(seen)


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
