"""Keeping a worker within limits of time and memory, and going on with the next class when one had to be ended.

Imports neither torch nor transformers: it lives in the pytest process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.census.worker import MEMORY_VARIABLE

GIB = 2**30


class WorkerError(Exception):
    """A worker did not start; the message holds what it said."""


@dataclass(frozen=True)
class Limits:
    """What one model class may use: seconds of wall clock, bytes of resident memory.

    `tired` is the resident size from which a worker is replaced between two families, so that one model does not pay
    for what others left behind.
    """

    seconds: float = 60.0
    memory: int = 4 * GIB
    tired: int = 3 * GIB // 2
    start_seconds: float = 120.0


class Supervisor:
    """Owns one worker at a time. Use as a context manager; not thread-safe."""

    def __init__(self, limits: Limits | None = None, log: Path | None = None) -> None:
        self.limits = limits or Limits()
        self.versions: dict[str, str] = {}
        self.peak = 0
        self._log = log
        self._worker: subprocess.Popen[str] | None = None
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def judge(self, family: str, *, every_class: bool) -> Iterator[dict[str, Any]]:
        """Yield the facts of the classes of a family. A class that had to be ended yields facts that say so.

        Raises WorkerError when no worker can be started.
        """
        skip: list[str] = []
        for _ in range(500):  # more restarts than any family has classes
            began: dict[str, Any] | None = None
            seen: list[bool] = []
            noted: dict[str, Any] = {}
            self._ensure_started()
            self._send({"family": family, "every_class": every_class, "skip": skip})
            while True:
                # Until the first class begins, the time goes into importing modeling code.
                event, ended = self._next(self.limits.seconds if began else self.limits.start_seconds)
                if event is None:
                    break
                if event.pop("event") == "family done":
                    return
                if "noted" in event:
                    noted = event["noted"]
                elif "end" not in event:
                    began, seen, noted = event, [], {}
                    skip.append(event["class"])
                    self.peak = 0
                else:
                    seen.append(event["use_reentrant"])
                    yield {**event, "peak_rss": self.peak}
            if not noted:
                ended = {"end": "not built", "reason": f"without checkpointing: {ended['end']}, {ended['reason']}"}
            yield from _ended({"class": "", "model": family, **(began or {}), **noted}, seen, ended, self.peak)
            if began is None:
                return

    def _ensure_started(self) -> None:
        if self._worker is not None and (
            self._worker.poll() is not None or resident(self._worker.pid) > self.limits.tired
        ):
            self._stop()
        if self._worker is not None:
            return
        environment = {
            **os.environ,
            MEMORY_VARIABLE: str(self.limits.memory),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(entry for entry in (_package_root(), os.environ.get("PYTHONPATH")) if entry),
        }
        log = open(self._log, "a", encoding="utf-8") if self._log else subprocess.DEVNULL  # noqa: SIM115
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "repro.census.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        if not isinstance(log, int):
            log.close()
        self._events = queue.Queue()
        threading.Thread(target=_pump, args=(self._worker.stdout, self._events), daemon=True).start()
        event, ended = self._next(self.limits.start_seconds)
        if event is None or event.get("event") != "ready":
            self._stop()
            raise WorkerError(f"the census worker did not start ({ended['reason']}); see its standard error")
        self.versions = {key: str(event[key]) for key in ("transformers", "torch")}

    def _send(self, request: dict[str, Any]) -> None:
        assert self._worker is not None
        assert self._worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a dead worker is met when its answer is read
            self._worker.stdin.write(json.dumps(request) + "\n")
            self._worker.stdin.flush()

    def _next(self, seconds: float) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return the next event, or None and how the worker ended. Ends it when it goes beyond a limit."""
        assert self._worker is not None
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self._events.get(timeout=0.05)
            except queue.Empty:
                used = resident(self._worker.pid)
                self.peak = max(self.peak, used)
                if used > self.limits.memory:
                    self._stop()
                    return None, {"end": "over its memory limit", "reason": f"{used / GIB:.1f} GiB resident"}
                if time.monotonic() > deadline:
                    self._stop()
                    return None, {"end": "timed out", "reason": f"no result within {seconds:g} s"}
                continue
            if event is not None:
                self.peak = max(self.peak, resident(self._worker.pid))
                return event, {}
            code = self._worker.wait()
            self._stop()
            return None, {"end": "crashed", "reason": _how(code)}

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        # Its whole session: a model may have started processes of its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def resident(pid: int) -> int:
    """Return the resident bytes of a process, 0 when it is gone. Linux reads /proc; elsewhere ps is asked."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return 0
        said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(said.stdout or 0) * 1024
    except (ProcessLookupError, IndexError):
        return 0


def _pump(stream: Any, events: queue.Queue[dict[str, Any] | None]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            events.put(json.loads(line))
    events.put(None)


def _ended(began: dict[str, Any], seen: list[bool], ended: dict[str, Any], peak: int) -> Iterator[dict[str, Any]]:
    """Yield facts for what was running. What the same class would have done afterwards did not run, and says so.

    Only a class whose plain model has trained can fail by its checkpointing; any other could not be built.
    """
    first = True
    for use_reentrant in (False, True):
        if use_reentrant in seen:
            continue
        reason = ended["reason"] if first else f"not run: its trial before {ended['end']}"
        yield {"engaged": 0, **began, **ended, "reason": reason, "use_reentrant": use_reentrant, "peak_rss": peak}
        first = False


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _package_root() -> str:
    return str(Path(__file__).resolve().parents[2])
