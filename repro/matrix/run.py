"""Running a plan: some cells at a time, each built when its turn comes, until all are done or someone interrupts."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from repro.cells.build import Builder
from repro.cells.cache import Cache
from repro.cells.cell import Cell, CellError
from repro.matrix import plan as planning
from repro.matrix.attempt import Setting
from repro.matrix.plan import Chosen, Planned
from repro.matrix.progress import Progress
from repro.matrix.work import work
from repro.store.records import record
from repro.store.writer import ResultsError, Writer


@dataclass(frozen=True)
class CellRun:
    """What came of one cell: it ran (`cell`), or it could not (`trouble`), or it was interrupted."""

    planned: Planned
    cell: Cell | None
    ran: int = 0
    as_declared: bool = True
    trouble: CellError | None = None
    interrupted: bool = False


def run(
    planned: Sequence[Planned],
    chosen: Chosen,
    setting: Setting,
    progress: Progress,
    *,
    cache: Cache,
    jobs: int,
    again: bool,
) -> list[CellRun]:
    """Run a plan, and return what came of each cell, in the order of the plan.

    An interrupt (Ctrl-C, SIGTERM) ends what runs and returns what there is; a trial that was under way has no
    observation then, and is run next time. Raises ResultsError when results cannot be written.
    """
    check_writable(setting.results)
    stop = Event()
    builder = Builder(cache, stop)
    observed = {} if again else planning.observations(setting.results)

    def one(item: Planned) -> CellRun:
        return _run_cell(item, chosen, setting, progress, builder, observed, stop)

    with _terminated_like_interrupted(), ThreadPoolExecutor(jobs, "cell") as pool:
        futures = [pool.submit(one, item) for item in planned]
        try:
            _wait(futures, progress)
        except KeyboardInterrupt:
            stop.set()
            for future in futures:
                future.cancel()
        except BaseException:
            stop.set()
            raise
    return [
        CellRun(item, item.cell, interrupted=True) if future.cancelled() else future.result()
        for item, future in zip(planned, futures, strict=True)
    ]


def check_writable(directory: Path) -> None:
    """Raise ResultsError, before anything is built or run, when results could not be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b" " * 4096)
            probe.flush()
    except OSError as error:
        raise ResultsError(
            f"cannot write results to {directory}: {error.strerror}. Choose another directory with --results, or make "
            "that one writable."
        ) from error


def _wait(futures: Sequence[Future[CellRun]], progress: Progress) -> None:
    """Wait for all, showing progress; the first error of one is raised at once."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5)
        for future in done:
            future.result()
        progress.tick()


def _run_cell(
    item: Planned,
    chosen: Chosen,
    setting: Setting,
    progress: Progress,
    builder: Builder,
    observed: dict[str, set[str]],
    stop: Event,
) -> CellRun:
    name = item.candidate.name
    writer = Writer(setting.results, "matrix")
    ran = 0

    def seen(written: Any) -> None:
        nonlocal ran
        ran += written["kind"] == "observation"
        progress.seen(name, written)

    cell: Cell | None = item.cell
    try:
        if item.trouble is not None:
            raise item.trouble
        if cell is None:
            assert item.candidate.spec is not None
            progress.stage(name, "building")
            cell = builder.get(item.candidate.spec)
        trials, _ = planning.remaining(cell, chosen, observed)
        if not trials:
            progress.stage(name, "done", 0)
            return CellRun(item, cell)
        with builder.cache.using(cell):
            progress.stage(name, "starting", len(trials))
            done = work(cell, trials, setting, writer, stop=stop, seen=seen)
    except CellError as error:
        if stop.is_set():
            return CellRun(item, cell, ran, interrupted=True)
        progress.stage(name, "failed")
        writer.append(
            record(
                "cell failed",
                cell.id if cell else name,
                requested=cell.requested if cell else name,
                stage=error.stage,
                reason=str(error),
            )
        )
        return CellRun(item, cell, ran, trouble=error)
    finally:
        writer.close()
    if not done.interrupted:
        progress.stage(name, "done")
    return CellRun(item, cell, ran, done.as_declared, interrupted=done.interrupted)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Treat SIGTERM, which CI sends, as Ctrl-C is treated."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before: Any = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
