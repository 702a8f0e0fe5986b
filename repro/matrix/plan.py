"""What a matrix would run: cells by trials, less what was observed already, with its cost."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from repro.catalog import find
from repro.cells import cell as cells
from repro.cells.cache import Cache
from repro.cells.cell import Cell, CellError
from repro.cells.releases import Table, select
from repro.cells.spec import Spec, python_of, specify
from repro.observe import choose
from repro.store.reader import Results, read
from repro.vocabulary import Failure, Scope, Trial

NOT_FINAL = ("could not run",)
"""Ends of trials that say nothing about the trial, so that a later run takes them again."""

# Measured on 2 cores: what a cell costs before its first trial, and each trial where no result tells yet.
BUILD_SECONDS = 5.0
START_SECONDS = 8.0
TRIAL_SECONDS: Mapping[Scope, float] = {"model": 0.05, "trainer": 0.3}
# Measured with torch's CPU build: the first cell unpacks torch, the others share its files through uv's cache.
FIRST_CELL_BYTES = 1200 * 2**20
NEXT_CELL_BYTES = 300 * 2**20


@dataclass(frozen=True)
class Candidate:
    """A cell that was asked for: one to build, or a user's own interpreter."""

    name: str
    spec: Spec | None = None
    python: Path | None = None


@dataclass(frozen=True)
class Planned:
    """A candidate and what is to be run in it. Without `cell` it is not built yet, or cannot be used: `trouble`."""

    candidate: Candidate
    cell: Cell | None
    trials: tuple[Trial, ...]
    observed: int
    trouble: CellError | None = None

    @property
    def to_build(self) -> bool:
        """Whether the cell has to be built first."""
        return self.cell is None and self.trouble is None


@dataclass(frozen=True)
class Chosen:
    """Which trials were asked for."""

    failures: tuple[Failure, ...]
    trial_set: choose.TrialSet = "full"
    scope: Scope | None = None
    trials: tuple[str, ...] = ()

    def on(self, device: str) -> list[Trial]:
        """Return the trials for a device."""
        found = [trial for failure in self.failures for trial in _trials(failure.id, self.trial_set, device)]
        if self.trials:
            found = [trial for trial in found if trial.id in self.trials]
        return [trial for trial in found if self.scope in (None, trial.scope)]


@lru_cache(maxsize=64)
def _trials(failure: str, trial_set: choose.TrialSet, device: str) -> tuple[Trial, ...]:
    """Return a failure's trials; finding a covering array takes a second, and every cell asks for the same one."""
    return tuple(choose.trials(find(failure), trial_set, device))


def candidates(
    releases: Sequence[str],
    environments: Sequence[Path],
    table: Table,
    *,
    torch: Sequence[str] = (),
    python: str = "",
    prereleases: bool = False,
) -> list[Candidate]:
    """Return the cells that were asked for, each once. Raises SelectionError for what does not exist."""
    found = [Candidate(f"environment {path}", python=python_of(path)) for path in environments]
    if releases:
        for release in select(releases, table, prereleases=prereleases):
            for version in torch or ("",):
                spec = specify(release, table, version, python)
                found.append(Candidate(spec.name, spec=spec))
    return list(dict.fromkeys(found))


def plan(
    asked: Iterable[Candidate],
    chosen: Chosen,
    results: Path,
    *,
    cache: Cache,
    again: bool = False,
    offline: bool = False,
) -> list[Planned]:
    """Return what is to be run. Nothing is built and nothing run, but a user's own interpreter is asked what it has."""
    observed = {} if again else observations(results)
    return [_planned(candidate, chosen, observed, cache, offline) for candidate in asked]


def _planned(
    candidate: Candidate, chosen: Chosen, observed: Mapping[str, set[str]], cache: Cache, offline: bool
) -> Planned:
    try:
        if candidate.spec is None:
            assert candidate.python is not None
            cell: Cell | None = cells.existing(candidate.python, candidate.name)
        else:
            cell = cache.find(candidate.spec)
            if cell is None and offline:
                raise CellError("build", "it is not cached, and --offline was said; run once without it to build it")
    except CellError as error:
        return Planned(candidate, None, (), 0, error)
    left, done = remaining(cell, chosen, observed)
    return Planned(candidate, cell, left, done)


def remaining(cell: Cell | None, chosen: Chosen, observed: Mapping[str, set[str]]) -> tuple[tuple[Trial, ...], int]:
    """Return the trials that a cell has no observation of, and how many it has one of."""
    trials = chosen.on(str(cell.described["device"]) if cell else "cpu")
    known = observed.get(cell.id, set()) if cell else set()
    left = tuple(trial for trial in trials if trial.id not in known)
    return left, len(trials) - len(left)


def observations(results: Path) -> dict[str, set[str]]:
    """Return the ids of the trials that were observed, by cell."""
    found: dict[str, set[str]] = {}
    if results.exists():
        for record in read(results, kinds=("observation",)).of_kind("observation"):
            if record["end"] not in NOT_FINAL:
                found.setdefault(record["cell"], set()).add(record["trial"])
    return found


@dataclass(frozen=True)
class Cost:
    """What a plan is expected to take: seconds by the clock, and bytes of disk."""

    seconds: float
    bytes: int


def cost(planned: Sequence[Planned], results: Path, *, jobs: int, workers: int, cache: Cache) -> Cost:
    """Estimate a plan's cost from the times of earlier trials, or from measured defaults."""
    known = _typical_seconds(read(results, kinds=("observation",))) if results.exists() else {}
    seconds = 0.0
    for item in planned:
        if item.trials:
            per = (known.get((t.failure, t.scope), TRIAL_SECONDS[t.scope]) for t in item.trials)
            seconds += START_SECONDS + sum(per) / workers + (BUILD_SECONDS if item.to_build else 0)
    new = sum(item.to_build for item in planned)
    first = FIRST_CELL_BYTES if new and not cache.cells() else 0
    return Cost(seconds / min(jobs, max(1, len(planned))), first + max(0, new - bool(first)) * NEXT_CELL_BYTES)


def _typical_seconds(results: Results) -> dict[tuple[str, Scope], float]:
    times: dict[tuple[str, Scope], list[float]] = {}
    for record in results.of_kind("observation"):
        if "seconds" in record:
            times.setdefault((record["failure"], record["scope"]), []).append(record["seconds"])
    return {key: statistics.mean(values) for key, values in times.items()}


def cores() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


def sharing(cells_to_run: int, jobs: int | None = None) -> tuple[int, int]:
    """Return how many cells run at a time, and how many processes each of them gets."""
    jobs = min(jobs or min(cores(), 8), max(1, cells_to_run))
    return jobs, max(1, cores() // jobs)


def as_row(item: Planned) -> dict[str, Any]:
    """Return a planned cell as JSON values."""
    spec = item.candidate.spec
    return {
        "name": item.candidate.name,
        "cell": item.cell.id if item.cell else None,
        "transformers": item.cell.transformers if item.cell else spec.transformers if spec else None,
        "torch": item.cell.described["torch"] if item.cell else (spec.torch or "newest") if spec else None,
        "python": item.cell.described["python"] if item.cell else spec.python if spec else None,
        "exclude_newer": spec.exclude_newer.isoformat() if spec else None,
        "state": "cannot be used" if item.trouble else "to build" if item.to_build else "ready",
        "trouble": str(item.trouble) if item.trouble else None,
        "trials": len(item.trials),
        "observed": item.observed,
    }
