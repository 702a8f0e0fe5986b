"""What metering costs: process time of metered runs as a ratio of unmetered ones, taken in turns within one run.

The limits asserted are wider than the figures reached, for machines that do other things meanwhile; the figures are in
the benchmark's extra information.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.memory.meter import Source, meter

from .memory_workload import model, quietly, trainer

ROUNDS = 9
EVALUATIONS = 6
CLIPS = (64_000,) * 20


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(before)


def seconds(make: Callable[[], Callable[[], Any]], source: Source | None) -> float:
    run = make()
    with meter(source=source) if source else contextlib.nullcontext():
        start = time.process_time()
        quietly(run)
        return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "what", "limit"),
    [
        ("allocator", "evaluation", 1.2),
        ("allocator", "training", 1.2),
        ("ledger", "evaluation", 2.0),
        ("ledger", "training", 1.6),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_metering_is_cheap(source: Source, what: str, limit: float, tmp_path: Path, benchmark: Any) -> None:
    def make() -> Callable[[], Any]:
        made = trainer(model(vocabulary=256, channels=32), CLIPS, tmp_path, max_steps=5)
        # One evaluation is too short to be told from what else a machine does.
        return made.train if what == "training" else lambda: [made.evaluate() for _ in range(EVALUATIONS)]

    seconds(make, source)
    pairs: list[tuple[float, float]] = []
    benchmark.pedantic(lambda: pairs.append((seconds(make, None), seconds(make, source))), rounds=ROUNDS)
    # Beside other tests benchmarks are switched off and run once; one pair would say nothing.
    pairs += [(seconds(make, None), seconds(make, source)) for _ in range(ROUNDS - len(pairs))]
    ratios = [metered / plain for plain, metered in pairs]
    best = min(metered for _, metered in pairs) / min(plain for plain, _ in pairs)
    benchmark.extra_info.update(source=source, what=what, median=statistics.median(ratios), best=best)
    print(f"{source}, {what}: {statistics.median(ratios):.3f} times (median of pairs), {best:.3f} (best against best)")
    assert min(best, statistics.median(ratios)) < limit
