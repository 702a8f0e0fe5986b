"""The truth table of a failure: which outcome each configuration had, per cell, read from stored observations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.store.reader import Results
from repro.store.records import Record
from repro.vocabulary import UNFINISHED, Configuration, Failure, Level, Mechanism, Scope


@dataclass(frozen=True)
class Row:
    """One configuration and its outcome. `records` are the ids of the observations that say so."""

    configuration: Configuration
    outcome: str
    trial: str
    records: tuple[str, ...]


@dataclass(frozen=True)
class Contradiction:
    """One configuration with different outcomes in one cell: by the outcome, the ids of the observations."""

    cell: str
    scope: Scope
    configuration: Configuration
    trial: str
    outcomes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class CellTable:
    """What was observed in one cell at one scope. Contradictory configurations are in no row."""

    cell: str
    transformers: str
    torch: str
    device: str
    scope: Scope
    rows: Mapping[Configuration, Row]
    mechanism: Mechanism | None


@dataclass(frozen=True)
class Observed:
    """All tables of a failure, and what could not go into one."""

    tables: tuple[CellTable, ...]
    contradictions: tuple[Contradiction, ...]
    unfinished: int
    foreign: int


@dataclass
class _Gathered:
    """The observations of one cell at one scope while they are being read."""

    about: Record
    rows: dict[Configuration, dict[str, list[Record]]] = field(default_factory=dict)


def tables(failure: Failure, results: Results) -> Observed:
    """Build the tables of a failure. Observations with factors or levels that it no longer has are counted only.

    The same holds for trials that were not seen to their end: they have no outcome.
    """
    mechanisms = {r["cell"]: r["mechanism"] for r in results.of_kind("mechanism", failure.id)}
    gathered: dict[tuple[str, Scope], _Gathered] = {}
    # One object per configuration: checked once, and quickly found equal to itself in every release's table.
    known: dict[tuple[Any, ...], Configuration | None] = {}
    unfinished = foreign = 0
    for record in results.of_kind("observation", failure.id):
        outcome = failure.outcome(record)
        if outcome in UNFINISHED:
            unfinished += 1
            continue
        key = tuple(record["configuration"].items())
        if key not in known:
            known[key] = _configuration(failure, record["configuration"])
        configuration = known[key]
        if configuration is None:
            foreign += 1
            continue
        here = gathered.setdefault((record["cell"], record["scope"]), _Gathered(record))
        here.rows.setdefault(configuration, {}).setdefault(outcome, []).append(record)
    contradictions = [
        Contradiction(cell, scope, configuration, _trial(outcomes), {o: _ids(r) for o, r in outcomes.items()})
        for (cell, scope), here in gathered.items()
        for configuration, outcomes in here.rows.items()
        if len(outcomes) > 1
    ]
    found = [
        CellTable(
            cell,
            str(here.about["transformers"]),
            str(here.about["torch"]),
            str(here.about["device"]),
            scope,
            {
                configuration: Row(configuration, outcome, str(records[0]["trial"]), _ids(records))
                for configuration, outcomes in here.rows.items()
                if len(outcomes) == 1
                for outcome, records in outcomes.items()
            },
            mechanisms.get(cell),
        )
        for (cell, scope), here in gathered.items()
    ]
    return Observed(tuple(found), tuple(contradictions), unfinished, foreign)


def _configuration(failure: Failure, levels: Mapping[str, Level]) -> Configuration | None:
    try:
        return failure.configuration(**levels)
    except ValueError:
        return None


def _ids(records: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(record["id"]) for record in records)


def _trial(outcomes: Mapping[str, list[Record]]) -> str:
    return str(next(iter(outcomes.values()))[0]["trial"])
