"""What a nightly is to run, as JSON: one entry per cell, ready for a matrix of jobs, and split into shards on request.

Nothing is built, run or read from results here: the plan is what the results are later held against.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from repro.cells.releases import Table, select
from repro.cells.spec import Spec, specify
from repro.matrix.plan import Chosen

MAIN = "main"
"""The name of transformers' main branch in a plan, and of the environment that a job makes for it."""
GPU = "gpu"
"""Under this key a plan has what runs on a GPU, apart from the matrix of jobs; and the name of that cell."""
NO_RUNNER = "no GPU runner is declared: the repository variable GPU_RUNNER is empty"


class PlanError(ValueError):
    """A plan, or the wish for one, makes no sense; the message says why and what to do."""


@dataclass(frozen=True)
class Entry:
    """One cell of a plan.

    `torch` and `python` are empty where they are left to the cell. `trials` is how many are to be observed there, and
    `digest` stands for their ids. `arguments` are what `repro matrix` is to be given, for a shell to split. `skipped`
    says why none of it is to run, and is empty where it is.
    """

    cell: str
    name: str
    transformers: str
    torch: str
    python: str
    device: str
    exclude_newer: str
    failures: str
    trial_set: str
    trials: int
    digest: str
    arguments: str
    skipped: str = ""


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a plan, counted from 1."""

    number: int
    of: int

    def part(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Return this part. The parts are disjoint, together the whole, and differ by one cell at most."""
        return tuple(entries[self.number - 1 :: self.of])


def shard(text: str) -> Shard:
    """Read `i/n`. Raises PlanError unless 1 <= i <= n."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise PlanError(f"{text!r} is no shard; say for example 1/4, the first of four")
    return Shard(int(match[1]), int(match[2]))


def plan(
    releases: Sequence[str],
    chosen: Chosen,
    table: Table,
    *,
    torch: Sequence[str] = (),
    python: str = "",
    device: str = "cpu",
    prereleases: bool = False,
    main: bool = False,
) -> tuple[Entry, ...]:
    """Return the cells to run, oldest release first. Raises SelectionError for a release that does not exist."""
    listing = trials_of(chosen, device)
    specs = [
        specify(release, table, version, python)
        for release in select(releases, table, prereleases=prereleases)
        for version in torch or ("",)
    ]
    entries = [_entry(spec, chosen, device, listing) for spec in dict.fromkeys(specs)]
    return (*entries, *([_of_main(chosen, device, listing)] if main else []))


def on_gpu(releases: Sequence[str], chosen: Chosen, table: Table, runner: str, *, prereleases: bool = False) -> Entry:
    """Return what is to run on a GPU: the reference set, in the newest release asked for, a final one where there is.

    `runner` is the label of the GPU's runner; without one the cell is planned, and skipped with that as the reason.
    """
    asked = select(releases, table, prereleases=prereleases)
    newest = ([release for release in asked if not release.prerelease] or asked)[-1]
    few = Chosen(chosen.failures, "reference")
    words = ["--transformers", newest.version]
    return Entry(
        GPU,
        f"transformers {newest.version} on a GPU",
        newest.version,
        "",
        "",
        "cuda",
        "",
        *_what(few, trials_of(few, "cuda"), words),
        "" if runner else NO_RUNNER,
    )


def trials_of(chosen: Chosen, device: str) -> tuple[str, ...]:
    """Return the ids of the trials that a cell on a device is to observe."""
    return tuple(trial.id for trial in chosen.on(device))


def digest(trials: Iterable[str]) -> str:
    """Return what stands for a set of trials."""
    return hashlib.sha256("\n".join(sorted(trials)).encode()).hexdigest()[:12]


def _entry(spec: Spec, chosen: Chosen, device: str, listing: tuple[str, ...]) -> Entry:
    words = ["--transformers", spec.transformers, "--python", spec.python]
    if spec.torch:
        words += ["--torch", "of-its-time" if spec.torch_of_its_time else spec.torch]
    return Entry(
        spec.id,
        spec.name,
        spec.transformers,
        spec.torch,
        spec.python,
        device,
        spec.exclude_newer.isoformat(),
        *_what(chosen, listing, words),
    )


def _of_main(chosen: Chosen, device: str, listing: tuple[str, ...]) -> Entry:
    return Entry(
        MAIN, f"environment {MAIN}", MAIN, "", "", device, "", *_what(chosen, listing, ["--environment", MAIN])
    )


def _what(chosen: Chosen, listing: tuple[str, ...], words: list[str]) -> tuple[str, str, int, str, str]:
    names = ",".join(failure.id for failure in chosen.failures)
    words = [*words, "--failures", names, "--trial-set", chosen.trial_set]
    return names, chosen.trial_set, len(listing), digest(listing), " ".join(words)


def as_matrix(entries: Iterable[Entry], gpu: Entry | None = None) -> dict[str, Any]:
    """Return a plan as JSON values: what a matrix of jobs takes; what runs on a GPU is apart, since its job is."""
    matrix = {"include": [asdict(entry) for entry in entries]}
    return {**matrix, GPU: [asdict(gpu)]} if gpu else matrix


def read(path: Path) -> tuple[Entry, ...]:
    """Read a plan back. Raises PlanError when it is missing or is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"no plan at {path}: write one with `repro plan --json > {path}`, or name --plan") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read as a plan: {error}") from None
    rows = document.get("include") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise PlanError(f'{path} is no plan: it has no list "include"')
    rows = [*rows, *document.get(GPU, [])]
    return tuple(_parse(row, f"{path}, cell {number}") for number, row in enumerate(rows, 1))


def _parse(row: Any, where: str) -> Entry:
    values: dict[str, Any] = {}
    for field in fields(Entry):
        kind = int if field.name == "trials" else str
        absent = None if field.default is MISSING else field.default
        value = row.get(field.name, absent) if isinstance(row, Mapping) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise PlanError(f"{where}: {field.name!r} is missing, or is not of type {kind.__name__}")
        values[field.name] = value
    return Entry(**values)
