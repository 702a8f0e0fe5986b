"""A cell and a suite for testing the matrix without transformers: trials hang, crash and eat memory on request."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

from repro.catalog import find
from repro.cells.cell import Cell
from repro.matrix import plan as planning
from repro.matrix.attempt import Setting
from repro.matrix.limits import Limits
from repro.matrix.plan import Chosen
from repro.matrix.work import Worked, work
from repro.store.reader import read
from repro.store.records import Record
from repro.store.writer import Writer
from repro.vocabulary import Trial

FAILURE = "whisper-double-backward"
NEUTRAL = "no:stepwise"
"""Given instead of the project's plugin: the stand-in's `conftest.py` does what that would."""

CELL = Cell(
    Path(sys.executable),
    {
        "cell": "standin",
        "transformers": "0",
        "torch": "0",
        "python": "3",
        "device": "cpu",
        "resolved": {"pytest-xdist": "3"},
    },
    "standin",
)


class Standin:
    """A suite that misbehaves on request, and what running it stored."""

    def __init__(self, root: Path) -> None:
        self.suite = root / "suite"
        self.results = root / "results"
        self.suite.mkdir()
        self.results.mkdir()
        shutil.copy(Path(__file__).with_name("standin_suite.py"), self.suite / "conftest.py")
        (self.suite / "test_standin.py").write_text("def test_trial(act): pass\n")
        self.trials = planning.Chosen((find(FAILURE),), "reference").on("cpu")[:6]

    def act(self, *actions: str) -> None:
        named = {trial.id: action for trial, action in zip(self.trials, actions, strict=False)}
        (self.suite / "actions.json").write_text(json.dumps(named))

    def setting(self, limits: Limits | None = None, workers: int = 1) -> Setting:
        return Setting(self.results, limits or Limits(), workers, "reference", self.suite, NEUTRAL)

    def work(
        self,
        limits: Limits | None = None,
        workers: int = 1,
        stop: Event | None = None,
        seen: Callable[[Record], object] = bool,
    ) -> Worked:
        known = planning.observations(self.results).get("standin", set())
        left = [trial for trial in self.trials if trial.id not in known]
        writer = Writer(self.results, "matrix")
        return work(CELL, left, self.setting(limits, workers), writer, stop=stop or Event(), seen=seen)

    def observed(self) -> list[Record]:
        return list(read(self.results).of_kind("observation"))

    def ends(self) -> list[str]:
        by_trial = {record["trial"]: record["end"] for record in self.observed()}
        return [by_trial.get(trial.id, "missing") for trial in self.trials]


class Few(Chosen):
    """The stand-in's trials, whatever was asked for."""

    def on(self, device: str) -> list[Trial]:
        return super().on(device)[:6]
