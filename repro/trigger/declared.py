"""The declared trigger against what was observed, configuration by configuration, in every cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from repro.trigger.table import CellTable, Row
from repro.vocabulary import Failure


@dataclass(frozen=True)
class Difference:
    """A configuration that did something else than the trigger says."""

    table: CellTable
    row: Row
    expected: str


@dataclass(frozen=True)
class Comparison:
    """How a declared trigger fares: what differs, how many rows it says nothing about, and cells without a mechanism.

    Without the mechanism that the release's probe saw, the trigger cannot say what should happen.
    """

    agreed: int
    differences: tuple[Difference, ...]
    silent: int
    no_mechanism: tuple[str, ...]


def compare(failure: Failure, tables: Iterable[CellTable]) -> Comparison:
    """Hold the declared trigger against every row of every table."""
    agreed = silent = 0
    differences: list[Difference] = []
    missing: dict[str, None] = {}
    for table in tables:
        if table.mechanism is None:
            missing[table.cell] = None
            continue
        for configuration, row in table.rows.items():
            expected = failure.trigger.predict(configuration, table.scope, table.mechanism)
            if expected is None:
                silent += 1
            elif expected == row.outcome:
                agreed += 1
            else:
                differences.append(Difference(table, row, expected))
    return Comparison(agreed, tuple(differences), silent, tuple(missing))
