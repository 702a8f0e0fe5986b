"""Long and hard runs: killed again and again, two at a time, and with a clock that jumps: nothing is lost or harmed.

`HARD_CELLS` and `HARD_KILLS` make it longer than the suite can afford; the full figure is 40 cells and 20 kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from repro.matrix import plan as planning
from repro.store import records
from repro.store.reader import read
from repro.store.writer import Writer

from .standin import FAILURE, Standin

CELLS = int(os.environ.get("HARD_CELLS", "3"))
KILLS = int(os.environ.get("HARD_KILLS", "3"))

PROGRAM = """
    import sys
    from dataclasses import replace
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from repro.catalog import find
    from repro.cells.cache import Cache
    from repro.matrix.plan import Candidate, Planned, observations, remaining
    from repro.matrix.progress import Progress
    from repro.matrix.run import run
    from standin import CELL, FAILURE, Few, Standin

    standin = Standin.__new__(Standin)
    standin.suite, standin.results = Path(sys.argv[1], "suite"), Path(sys.argv[1], "results")
    names = [f"standin-{number}" for number in range(int(sys.argv[3]))]
    cells = [replace(CELL, requested=name, described={**CELL.described, "cell": name}) for name in names]
    chosen = Few((find(FAILURE),), "reference")
    known = observations(standin.results)
    planned = [Planned(Candidate(cell.id, python=cell.python), cell, *remaining(cell, chosen, known)) for cell in cells]
    with Progress(live=False) as progress:
        cache = Cache.default()
        runs = run(planned, chosen, standin.setting(), progress, cache=cache, jobs=2, again=False)
    sys.exit(any(one.interrupted or one.trouble or not one.as_declared for one in runs))
"""


def start(standin: Standin, cells: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(standin.suite.parent), str(Path(__file__).parent)]
    return subprocess.Popen([*program, str(cells)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def made(root: Path) -> Standin:
    root.mkdir()
    standin = Standin(root)
    standin.act()
    return standin


def ends(standin: Standin) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for record in standin.observed():
        found.setdefault((record["cell"], record["trial"]), set()).add(record["end"])
    return found


@pytest.mark.slow
def test_a_matrix_killed_at_random_moments_ends_with_the_results_of_one_left_alone(tmp_path: Path) -> None:
    alone, killed = made(tmp_path / "alone"), made(tmp_path / "killed")
    began = time.monotonic()
    assert start(alone, CELLS).wait(timeout=60 * CELLS) == 0
    took = time.monotonic() - began
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    for _ in range(KILLS):
        process = start(killed, CELLS)
        try:
            process.wait(timeout=moments.uniform(0, took))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert start(killed, CELLS).wait(timeout=60 * CELLS) == 0
    assert len(ends(alone)) == CELLS * len(alone.trials)
    assert ends(killed) == ends(alone)
    assert read(killed.results).damage == ()


@pytest.mark.slow
def test_two_matrices_into_one_directory_at_once_leave_what_one_leaves(tmp_path: Path) -> None:
    standin = made(tmp_path / "both")
    both = [start(standin, 1), start(standin, 1)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert set(map(tuple, ends(standin).values())) == {("completed",)}
    assert len(ends(standin)) == len(standin.trials)


def test_a_clock_that_jumps_backwards_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(["12:00", "12:01", "03:00", "11:00", "00:00", "12:00"])
    monkeypatch.setattr(records, "now", lambda: f"2026-03-29T{next(hours)}:00+00:00")
    standin = made(tmp_path / "clock")
    for trial in standin.trials:
        writer = Writer(standin.results)
        writer.append(records.record("observation", "standin", failure=FAILURE, trial=trial.id, end="completed"))
    assert standin.ends() == ["completed"] * len(standin.trials)
    assert planning.observations(standin.results) == {"standin": {trial.id for trial in standin.trials}}
