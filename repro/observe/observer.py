"""One process's observing: runs trials under limits, and writes what happened before and after each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.catalog import find
from repro.observe import fresh
from repro.observe.describe import describe
from repro.observe.limits import Limits, enforced
from repro.observe.raised import UnobservableError, as_facts
from repro.store.records import record
from repro.store.writer import Writer
from repro.vocabulary import Facts, Mechanism, Trial

CELL_FIELDS = ("transformers", "torch", "python", "device")


@dataclass
class Observer:
    """Runs trials in this process. Without a results directory nothing is stored."""

    results: Path | None
    limits: Limits = field(default_factory=Limits)
    requested: str = ""
    exclude_newer: str | None = None

    def __post_init__(self) -> None:
        """Describe the cell once; a record of it is written before the first other record."""
        self.cell = describe()
        self._writer = Writer(self.results) if self.results else None
        self._wrote_cell = False
        self._observed = 0
        self._mechanisms: dict[str, Mechanism] = {}

    def observe(self, trial: Trial) -> Facts:
        """Run one trial and return its facts. An error of the trial is a fact; an error of the apparatus is raised."""
        if self._observed == 1:
            fresh.settle()
        self._observed += 1
        self._write("started", **self._names(trial), pid=os.getpid())
        began = time.perf_counter()
        with enforced(self.limits, lambda end, detail: self._finish(trial, {"end": end, "detail": detail}, began)):
            try:
                facts: Facts = find(trial.failure).observe(trial)
            except UnobservableError as error:
                facts = {"end": "skipped", "detail": str(error)}
            except Exception as error:
                self._finish(trial, {"end": "could not run", "exception": as_facts(error)}, began)
                raise
        return self._finish(trial, facts, began)

    def mechanism(self, failure: str) -> Mechanism:
        """Return what the failure's probe sees in this release; it runs once per process."""
        if failure not in self._mechanisms:
            self._mechanisms[failure] = find(failure).probe()
            self._write("mechanism", failure=failure, mechanism=self._mechanisms[failure])
        return self._mechanisms[failure]

    def rerun_command(self, trial: Trial) -> str:
        """Return the one command that runs a trial again."""
        return f"repro run {trial.failure} --trial {trial.id}"

    def _names(self, trial: Trial) -> dict[str, Any]:
        return {
            "failure": trial.failure,
            "trial": trial.id,
            "scope": trial.scope,
            "configuration": dict(trial.configuration),
            **{name: self.cell[name] for name in CELL_FIELDS},
        }

    def _finish(self, trial: Trial, facts: Facts, began: float) -> Facts:
        seconds = round(time.perf_counter() - began, 4)
        self._write("observation", **self._names(trial), seconds=seconds, **facts)
        return facts

    def _write(self, kind: str, **fields: Any) -> None:
        if self._writer is None:
            return
        if not self._wrote_cell:
            about = {**self.cell, "requested": self.requested, "exclude_newer": self.exclude_newer}
            self._writer.append(record("cell", about.pop("cell"), **about))
            self._wrote_cell = True
        self._writer.append(record(kind, self.cell["cell"], **fields))
