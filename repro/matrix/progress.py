"""How a matrix is going, on standard error: a live bar per cell on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING

from repro.show import terminal
from repro.store.records import Record

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_SECONDS = 5.0


class Progress:
    """Shows what each cell does. Its methods may be called from any thread; `tick` by the main one, often."""

    def __init__(self, *, live: bool | None = None) -> None:
        self._live = sys.stderr.isatty() if live is None else live
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}
        self._done: Counter[str] = Counter()
        self._stages: dict[str, str] = {}
        self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if self._live:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Bars(*columns, TextColumn("{task.fields[stage]}"), console=terminal.err())
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def stage(self, name: str, stage: str, total: int | None = None) -> None:
        """Say what a cell is at: building, starting, running, done."""
        if total is not None:
            self._totals[name] = total
        self._stages[name] = stage
        if self._bars is None:
            count = f", {total} trial{'' if total == 1 else 's'}" if total is not None else ""
            terminal.say(f"{name}: {stage}{count}")
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None, stage=stage)
        self._bars.update(self._tasks[name], stage=stage, total=self._totals.get(name))

    def seen(self, name: str, record: Record) -> None:
        """Count an observation."""
        if record["kind"] != "observation":
            return
        self._done[name] += 1
        if self._stages.get(name) == "starting":
            self._stages[name] = "running"
        if self._bars is not None and name in self._tasks:
            self._bars.update(self._tasks[name], completed=self._done[name], stage=self._stages[name])

    def tick(self) -> None:
        """Write a line about the cells under way, where no bars show them."""
        if self._bars is not None or time.monotonic() - self._said < LINE_SECONDS:
            return
        self._said = time.monotonic()
        under_way = [name for name, stage in list(self._stages.items()) if stage not in ("done", "failed")]
        if under_way:
            texts = [
                f"{name} {self._done[name]}/{self._totals[name]}"
                if name in self._totals
                else f"{name} {self._stages[name]}"
                for name in under_way
            ]
            terminal.say(f"... {'; '.join(texts)}")
