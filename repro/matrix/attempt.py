"""One pytest process tree in a cell, watched: what it finished, what it was doing when it ended, and why it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psutil

from repro.cells.cell import Cell, in_cell
from repro.cells.places import suite
from repro.matrix import leash
from repro.matrix.follow import Follower
from repro.matrix.limits import GRACE_SECONDS, Limits
from repro.store.records import Record
from repro.vocabulary import Trial

POLL_SECONDS = 0.2
CRASHED_WORKER = "crashed while running"
"""What pytest-xdist says of a worker that ended under a test."""
PLUGIN = "repro.observe.plugin"


@dataclass(frozen=True)
class Setting:
    """How pytest is run in a cell. `suite` and `plugin` are the project's own, except where the runner is tested."""

    results: Path
    limits: Limits = field(default_factory=Limits)
    workers: int = 1
    trial_set: str = "full"
    suite: Path = field(default_factory=suite)
    plugin: str = PLUGIN


@dataclass
class Attempt:
    """What came of one pytest process tree. `unfinished` maps the trials it was in to how they ended, and why."""

    code: int | None = None
    observed: set[str] = field(default_factory=set)
    unfinished: dict[str, tuple[Record, str, str]] = field(default_factory=dict)
    stopped: str = ""
    output: str = ""


def command(cell: Cell, trials: Path, failures: Sequence[str], setting: Setting) -> list[str]:
    """Return the pytest command for a cell."""
    words = [str(cell.python), "-m", "pytest", "-p", setting.plugin, "-c", os.devnull, "--rootdir", str(setting.suite)]
    words += ["-p", "no:cacheprovider", "-q", "--tb=short", "--no-header", str(setting.suite)]
    words += ["--results", str(setting.results.absolute()), "--trials", str(trials)]
    words += ["--failures", ",".join(failures), "--trial-set", setting.trial_set]
    words += ["--trial-seconds", str(setting.limits.trial_seconds), "--trial-bytes", str(setting.limits.trial_bytes)]
    words += ["--requested", cell.requested]
    words += ["--exclude-newer", cell.exclude_newer] if cell.exclude_newer else []
    if setting.workers > 1 and "pytest-xdist" in cell.resolved:
        # worksteal gives each worker a contiguous half: neighbours share a twin.
        words += ["-p", "xdist.plugin", "-n", str(setting.workers), "--dist", "worksteal"]
    return words


def environment() -> dict[str, str]:
    """Return the environment variables of a run: one thread each, and no plugin that happens to be installed."""
    return {"OMP_NUM_THREADS": "1", **in_cell(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONFAULTHANDLER": "1"}


def attempt(
    cell: Cell,
    trials: Sequence[Trial],
    setting: Setting,
    *,
    deadline: float,
    stop: Event,
    seen: Callable[[Record], object],
) -> Attempt:
    """Run trials in a cell until all are done, the process ends, or a limit or `stop` ends it.

    `deadline` is a `time.monotonic()`; `seen` is told every record of the cell as it appears.
    """
    with tempfile.TemporaryDirectory(prefix="repro-") as scratch:
        listing = Path(scratch, "trials")
        listing.write_text("".join(f"{trial.id}\n" for trial in trials))
        failures = list(dict.fromkeys(trial.failure for trial in trials))
        words = command(cell, listing, failures, setting)
        with Path(scratch, "output").open("w+b") as output:
            watch = _Watch(cell, setting, deadline, stop, seen)
            process = subprocess.Popen(
                [sys.executable, "-S", "-E", leash.__file__, *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                cwd=scratch,
                start_new_session=True,
            )
            try:
                watch.until_end_of(process)
            finally:
                _kill_all(process)
            output.seek(0)
            return watch.result(process.returncode, output.read().decode(errors="replace"))


class _Watch:
    """Watches a process tree: follows its records, and ends what goes over a limit."""

    def __init__(
        self, cell: Cell, setting: Setting, deadline: float, stop: Event, seen: Callable[[Record], object]
    ) -> None:
        self._setting = setting
        self._deadline = deadline
        self._stop = stop
        self._seen = seen
        self._follower = Follower(setting.results, cell.id)
        self._running: dict[int, tuple[Record, float]] = {}
        self._killed: dict[int, tuple[str, str]] = {}
        self._lost: list[tuple[Record, int]] = []
        self._attempt = Attempt()

    def until_end_of(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            self._follow()
            if self._stop.is_set():
                self._attempt.stopped = "interrupted"
                return
            if time.monotonic() > self._deadline:
                self._attempt.stopped = f"the cell's limit of {self._setting.limits.cell_seconds:g} s was reached"
                for pid in list(self._running):
                    self._killed[pid] = ("timed out", self._attempt.stopped)
                return
            self._limit_memory(process.pid)
            self._limit_time()
            self._notice_deaths()
            time.sleep(POLL_SECONDS)

    def result(self, code: int | None, output: str) -> Attempt:
        self._follow()
        done = self._attempt
        done.code, done.output = code, output
        if done.stopped != "interrupted":
            self._lost += [(record, pid) for pid, (record, _) in self._running.items()]
            for record, pid in self._lost:
                end, detail = self._killed.get(pid) or how_it_ended(code, output)
                done.unfinished[record["trial"]] = (record, end, detail)
        return done

    def _follow(self) -> None:
        for record in self._follower.new():
            if record["kind"] == "started":
                before = self._running.get(record["pid"])
                if before is not None:  # a new process with the pid of one that died
                    self._lost.append((before[0], record["pid"]))
                self._running[record["pid"]] = (record, time.monotonic())
            elif record["kind"] == "observation":
                self._attempt.observed.add(record["trial"])
                for pid, (started, _) in list(self._running.items()):
                    if started["trial"] == record["trial"]:
                        del self._running[pid]
            self._seen(record)

    def _limit_time(self) -> None:
        allowed = self._setting.limits.trial_seconds + GRACE_SECONDS
        for pid, (_, since) in self._running.items():
            if pid not in self._killed and time.monotonic() - since > allowed:
                self._end(pid, "timed out", f"did not end itself; killed after {allowed:g} s")

    def _notice_deaths(self) -> None:
        """Settle the trials of processes that are gone, before a limit would be blamed for it."""
        gone = [pid for pid in self._running if not _alive(pid)]
        if gone:
            self._follow()  # one may have written its observation just before it ended
        for pid in gone:
            if pid in self._running:
                self._lost.append((self._running.pop(pid)[0], pid))

    def _limit_memory(self, root: int) -> None:
        sizes = _resident(root)
        limits = self._setting.limits
        allowed = limits.trial_bytes + limits.trial_bytes // 4
        for pid, size in sizes.items():
            if size > allowed and pid not in self._killed:
                self._end(pid, "over its memory limit", f"{size / 2**20:.0f} MiB resident; killed from outside")
        total = sum(sizes.values())
        if total > limits.cell_bytes:
            largest = max(sizes, key=lambda pid: sizes[pid])
            detail = f"its cell took {total / 2**20:.0f} MiB, the limit is {limits.cell_bytes / 2**20:.0f} MiB"
            self._end(largest, "over its memory limit", detail)

    def _end(self, pid: int, end: str, detail: str) -> None:
        self._killed[pid] = (end, detail)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def how_it_ended(code: int | None, output: str) -> tuple[str, str]:
    """Return the end of a trial without an observation, and its detail: a crash, unless pytest itself lived on."""
    if code in (0, 1) and CRASHED_WORKER not in output:
        return "could not run", "pytest went on, but the trial left no observation"
    return "crashed", death(code, output)


def death(code: int | None, output: str) -> str:
    """Say how a process died, from its exit code and its last words."""
    fatal = re.findall(r"Fatal Python error: ([^\n]+)", output)
    if fatal:
        return str(fatal[-1])
    if code is not None and code > 128:
        with contextlib.suppress(ValueError):
            return signal.Signals(code - 128).name
    if CRASHED_WORKER in output:
        return "its worker process ended without a word"
    return f"its process ended with exit code {code}"


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _resident(root: int) -> dict[int, int]:
    """Return the resident bytes of a process's descendants, by pid."""
    sizes: dict[int, int] = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                sizes[process.pid] = process.memory_info().rss
    return sizes


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """End the whole tree, those descendants included that left the process group."""
    stray: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        stray = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for descendant in stray:
        with contextlib.suppress(psutil.Error):
            descendant.kill()
    if process.stdin:
        process.stdin.close()
    process.wait()
