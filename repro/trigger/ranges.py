"""Releases that behave alike: neighbouring releases of which no configuration tells one from another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from repro.trigger.table import CellTable, Row
from repro.vocabulary import Configuration, Scope


@dataclass(frozen=True)
class Range:
    """Tables of neighbouring releases, oldest first, all of one scope, torch and device, that never contradict.

    `rows` has every configuration that any of them saw, with the row of the first that did.
    """

    tables: tuple[CellTable, ...]
    rows: Mapping[Configuration, Row]

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
            found[-1] = Range((*found[-1].tables, table), {**table.rows, **found[-1].rows})
        else:
            found.append(Range((table,), table.rows))
    return found


def _alike(known: Range, table: CellTable) -> bool:
    both = [(known.rows[c].outcome, row.outcome) for c, row in table.rows.items() if c in known.rows]
    return bool(both) and all(before == now for before, now in both)


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
