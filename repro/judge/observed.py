"""Observations by cell and trial, with one outcome each, or the reason why there is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from packaging.version import InvalidVersion, Version

from repro.store.records import Record
from repro.vocabulary import UNFINISHED, Configuration, Failure

MECHANISM = "mechanism"


@dataclass(frozen=True)
class Outcome:
    """What is known of one trial in one cell. `name` is None when it has no single outcome; `why` then says why."""

    name: str | None
    evidence: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass
class Cell:
    """The observations of one failure in one cell."""

    id: str
    transformers: str
    torch: str
    device: str
    observations: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    mechanism: Mapping[str, Any] | None = None

    @property
    def order(self) -> tuple[Version, Version, str]:
        """A key that sorts cells by release, then by torch."""
        return version(self.transformers), version(self.torch), self.id

    @property
    def lacks_the_model(self) -> bool:
        """Tell whether a probe found that this release does not have the model that the failure is about."""
        return self.mechanism is not None and self.mechanism.get("in_release") is False

    def outcome(self, failure: Failure, trial: str) -> Outcome:
        """Return what is known of a trial, by its id. Contradictory observations are no outcome, but shown."""
        records = self.observations.get(trial, [])
        finished = [record for record in records if record["end"] not in UNFINISHED]
        if not finished:
            why = f"{records[-1]['end']}: {records[-1].get('detail', '')}".strip(": ") if records else "did not run"
            return Outcome(None, tuple(record["id"] for record in records), why=why)
        names = {failure.outcome(record) for record in finished}
        evidence = tuple(record["id"] for record in finished)
        if len(names) > 1:
            return Outcome(None, evidence, why=f"contradictory observations: {', '.join(sorted(names))}")
        return Outcome(names.pop(), evidence, finished[-1])

    def outcome_of(self, failure: Failure, configuration: Configuration) -> Outcome:
        """Return what is known of a configuration at the scope of the report."""
        return self.outcome(failure, failure.trial(configuration).id)


@lru_cache(maxsize=1024)
def version(text: str | None) -> Version:
    """Return a version to sort by; what is none sorts first."""
    try:
        return Version(text or "0")
    except InvalidVersion:
        return Version("0")


def by_failure(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the records that are about a failure, by its id, for those who ask about one failure after another."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if "failure" in record:
            found[record["failure"]].append(record)
    return found


def cells(failure: Failure, records: Iterable[Record]) -> list[Cell]:
    """Return the cells in which a failure was observed, by release."""
    found: dict[str, Cell] = {}
    mechanisms: dict[str, Mapping[str, Any]] = {}
    for record in records:
        if record.get("failure") != failure.id:
            continue
        if record["kind"] == MECHANISM:
            mechanisms[record["cell"]] = record["mechanism"]
        elif record["kind"] == "observation":
            cell = found.get(record["cell"])
            if cell is None:
                transformers, torch, device = (str(record[name]) for name in ("transformers", "torch", "device"))
                cell = found[record["cell"]] = Cell(record["cell"], transformers, torch, device)
            cell.observations[record["trial"]].append(record)
    for cell in found.values():
        cell.mechanism = mechanisms.get(cell.id)
    return sorted(found.values(), key=lambda cell: cell.order)
