"""What a pytest process needs to run the census: which families, how thoroughly, and where results go."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.census import verdicts
from repro.census.families import speech_families
from repro.census.supervisor import Limits, Supervisor
from repro.observe.describe import describe
from repro.store.records import record
from repro.store.writer import Writer


@dataclass
class CensusObserver:
    """Runs families in a supervised worker, and stores one `census` record per class and kind of checkpointing."""

    results: Path | None
    limits: Limits = field(default_factory=Limits)
    every_class: bool = False
    log: Path | None = None

    def __post_init__(self) -> None:
        """Describe the cell once; its record is written before the first other record."""
        self._cell = describe()
        self._writer = Writer(self.results, "census") if self.results else None
        self._wrote_cell = False
        self._supervisor = Supervisor(self.limits, self.log)

    def observe(self, family: str) -> list[dict[str, Any]]:
        """Return the facts of a family, each with its verdict. They are stored together: a family is done or not."""
        every_class = self.every_class or "." in family or family in speech_families()
        seen = [
            {**facts, "verdict": verdicts.verdict(facts), "detail": verdicts.detail(facts)}
            for facts in self._supervisor.judge(family, every_class=every_class)
        ]
        for facts in seen or [{"model": family, "class": None, "end": "no class"}]:
            self._write("census", family=family, every_class=every_class, **facts)
        return seen

    def close(self) -> None:
        """End the worker."""
        self._supervisor.__exit__()

    def _write(self, kind: str, **fields: Any) -> None:
        if self._writer is None:
            return
        cell = self._cell["cell"]
        if not self._wrote_cell:
            about = {name: value for name, value in self._cell.items() if name != "cell"}
            self._writer.append(record("cell", cell, **about, requested="census", exclude_newer=None))
            self._wrote_cell = True
        versions = {name: self._cell[name] for name in ("transformers", "torch", "python", "device")}
        self._writer.append(record(kind, cell, **versions, **fields))
