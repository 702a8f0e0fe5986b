"""How a matrix grows, measured with real cells and real trials. No test: it takes minutes, and wants a quiet machine.

    python tests/harness/measure_matrix.py workers [TORCH]
    python tests/harness/measure_matrix.py cells [TORCH]

`workers` runs the same two cells with one processor and with two, in turns. `cells` fills an empty cache with 40 cells
and a directory of results with as many, runs trials in the second to the fourth cell and in the last three, and
compares what these cost. They are neighbours among the releases, and their wheels were fetched before.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from repro.cells.build import Builder
from repro.cells.cache import Cache
from repro.cells.releases import Release, select, table
from repro.cells.spec import specify
from repro.store.reference import REFERENCE

EARLY = ("4.57.1", "4.56.1", "4.55.2")
LATE = ("4.57.3", "4.56.2", "4.55.4")
"""Releases of one minor each: what a cell costs depends on the release more than on anything else."""
CELLS = 40
ROUNDS = 2


def matrix(
    releases: Sequence[str],
    torch: str,
    failure: str,
    results: Path,
    *,
    reference: bool,
    cells: str = "",
    cores: int = 0,
) -> None:
    """Run a matrix in a process of its own, on so many processors. Raises CalledProcessError when it fails."""
    words = ["--transformers", ",".join(releases), "--failures", failure, "--results", str(results)]
    words += (["--torch", torch] if torch else []) + (["--trial-set", "reference"] if reference else [])
    allowed = set(sorted(os.sched_getaffinity(0))[: cores or None])
    subprocess.run(
        [sys.executable, "-m", "repro", "matrix", *words],
        env={**os.environ, **({"REPRO_CELLS": cells} if cells else {})},
        check=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )


def spent(what: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that something takes: by the clock, and of processors in its processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    what()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, used


def measure_workers(scratch: Path, torch: str) -> None:
    """Print how much faster two processors run two cells than one does."""
    run = partial(matrix, EARLY[:2], torch, "whisper-double-backward")
    run(scratch / "built", reference=True)
    ratios = []
    for number in range(ROUNDS):
        clock = {}
        for cores in (1, 2):
            clock[cores], used = spent(partial(run, scratch / f"{number}-{cores}", reference=False, cores=cores))
            print(f"{cores} processors: {clock[cores]:.1f} s by the clock, {used:.1f} s of processors", flush=True)
        ratios.append(clock[1] / clock[2])
    print(f"two are {statistics.median(ratios):.2f} times as fast as one; rounds: {[round(r, 2) for r in ratios]}")


def measure_cells(scratch: Path, torch: str) -> None:
    """Print what the last of 40 cells cost beside the second to the fourth."""
    others = select([">=4.40,<4.55"], table())[: CELLS - len(EARLY) - len(LATE)]
    home, results, seen = scratch / "cells", scratch / "results", set[tuple[int, int]]()

    def build(releases: Sequence[Release], root: Path = home) -> None:
        for release in releases:
            Builder(Cache(root)).get(specify(release, table(), torch))
        sum(new_bytes(home, seen))

    def cost(release: str) -> tuple[float, float, float]:
        run = partial(matrix, [release], torch, "speecht5-double-backward", results, reference=True)
        by_clock, used = spent(partial(run, cells=str(home), cores=1))
        mib = sum(new_bytes(home, seen)) / 2**20
        print(f"{release}: {by_clock:.1f} s by the clock, {used:.1f} s of processors, {mib:.1f} MiB", flush=True)
        return by_clock, used, mib

    build(select([*EARLY, *LATE], table()), scratch / "fetched")
    build(others[:1])
    early = [cost(release) for release in EARLY]
    build(others[1:])
    for path in REFERENCE.glob("*.jsonl"):
        shutil.copy(path, results)
    late = [cost(release) for release in LATE]
    for column, name in enumerate(("by the clock", "of processors", "on disk")):
        ratios = [after[column] / before[column] for before, after in zip(early, late, strict=True)]
        print(f"{name}: cells {CELLS - 2} to {CELLS} cost {statistics.median(ratios):.2f} times cells 2 to 4")


def new_bytes(home: Path, seen: set[tuple[int, int]]) -> Iterator[int]:
    """Yield the bytes on disk of every file below a directory that was not seen before, under whatever name."""
    for directory, _, names in os.walk(home):
        for name in names:
            about = os.lstat(os.path.join(directory, name))
            if (about.st_dev, about.st_ino) not in seen:
                seen.add((about.st_dev, about.st_ino))
                yield about.st_blocks * 512


if __name__ == "__main__":
    measures = {"workers": measure_workers, "cells": measure_cells}
    if len(sys.argv) < 2 or sys.argv[1] not in measures:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="repro-measure-") as scratch_name:
        measures[sys.argv[1]](Path(scratch_name), sys.argv[2] if len(sys.argv) > 2 else "")
