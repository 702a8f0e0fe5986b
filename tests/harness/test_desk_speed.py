"""Speed of the desk, every run in a process of its own: `pytest tests/harness/test_desk_speed.py --benchmark-only`.

A night has 100 cells and 92,000 records: half of them are observations of the size of real ones, the other half say
that a trial was begun. Process time is in the benchmark's extra information: the clock tells more about what else a
machine does.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from repro.cells.releases import table
from repro.observe import choose
from repro.store.records import dump, record

from .records import AFFECTED, DOUBLE, FINE, WHISPER

CELLS, TRIALS = 100, 459
RELEASES = [release.version for release in table().of("transformers") if not release.yanked][-CELLS // 2 :]
FACTS: dict[str, Any] = {
    **FINE,
    "python": "3.11.7",
    "seconds": 0.1528,
    "proofs": {
        "checkpoint_calls": 6,
        "checkpoint_runs": 8,
        "checkpoint_modes": ["no gradient", "reentrant"],
        "use_reentrant_argument": ["True"],
        "live_keywords": [],
        "encoder_trains": True,
        "attention": "sdpa",
        "decoder_layers": 1,
        "use_cache": True,
    },
    "optimizer_steps": 2,
    "evaluations": 2,
    "generations": 0,
    "losses": [2.5633, 2.5319],
    "metrics": {"eval_loss": 2.548823833465576, "eval_wer": 120.0},
    "predicted": {"metrics": {"test_loss": 2.548823833465576}, "generated": False, "dimensions": None},
    "twin_losses": [2.5633, 2.5316],
    "gradients": {
        "compared": 52,
        "missing": [],
        "extra": [],
        "not_finite": [],
        "worst": "model.decoder.layers.0.fc1.weight",
        "worst_ratio": 0.1,
        "largest_difference": 1e-7,
        "tolerance": {"absolute_of_largest": 1e-05, "relative": 0.0001},
    },
}
"""What a real trial of the Trainer stores."""


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two nights of the same cells and trials; in the second, one release fails where it did not."""
    reported = WHISPER.trial(WHISPER.reported)
    trials = [reported, *(trial for trial in choose.trials(WHISPER) if trial.id != reported.id)][:TRIALS]
    root = tmp_path_factory.mktemp("nights")
    for night in ("old", "new"):
        (root / night).mkdir()
        for number in range(CELLS):
            at = {"transformers": RELEASES[number // 2], "torch": f"2.{12 + number % 2}.0", "device": "cpu"}
            name = f"cell-{number}"
            rows = [record("cell", name, **at, python="3.11.7", resolved={}, requested="")]
            rows.append(record("mechanism", name, failure=WHISPER.id, mechanism=AFFECTED))
            for trial in trials:
                about = {
                    "failure": trial.failure,
                    "trial": trial.id,
                    "scope": trial.scope,
                    "configuration": dict(trial.configuration),
                }
                failed = trial is reported and (night, number) == ("new", CELLS - 1)
                rows.append(record("started", name, **about, pid=1))
                rows.append(record("observation", name, **about, **at, **(DOUBLE if failed else FACTS)))
            (root / night / f"{number}.jsonl").write_text("".join(f"{dump(row)}\n" for row in rows))
    return root / "old", root / "new"


def timed(benchmark: Any, words: Sequence[str], code: int = 0, rounds: int = 5) -> str:
    """Run a command of this program some times in processes of its own, and return what it said last."""
    spent: list[float] = []

    def run() -> str:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        return done.stdout

    said = benchmark.pedantic(run, rounds=rounds, warmup_rounds=1)
    benchmark.extra_info.update(process_seconds=sorted(spent)[len(spent) // 2])
    return str(said)


@pytest.mark.slow
def test_planning_all_failures_in_all_releases(benchmark: Any) -> None:
    assert "repro matrix" in timed(benchmark, ["-m", "repro", "plan", "--prereleases", "--main", "--commands"])


@pytest.mark.slow
def test_a_diff_of_two_nights_of_100_cells_finds_the_one_that_changed(
    benchmark: Any, nights: tuple[Path, Path]
) -> None:
    said = timed(benchmark, ["-m", "repro", "diff", *map(str, nights)], code=1)
    assert said.count("trains -> double backward") == 1


MERGE = """
import sys
from pathlib import Path
from repro.store.reader import read
print(len(read(Path(sys.argv[1])).records))
"""


@pytest.mark.slow
def test_merging_the_results_of_100_cells_reads_every_record(benchmark: Any, nights: tuple[Path, Path]) -> None:
    assert timed(benchmark, ["-c", MERGE, str(nights[0])]).strip() == str(CELLS * (2 + 2 * TRIALS))
