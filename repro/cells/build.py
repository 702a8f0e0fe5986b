"""Building a cell with uv: resolved as of its date, put in place in one step, or a reason why not."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event, Lock

from repro.cells import ambient
from repro.cells.cache import Cache
from repro.cells.cell import Cell, CellError, describe
from repro.cells.locks import BusyError, lock
from repro.cells.spec import Spec

BUILD_SECONDS = 1800
"""A torch with its CUDA libraries is several gigabytes; past this the network is at fault."""


@dataclass
class Builder:
    """Builds cells into a cache. One is shared by the threads of a run; `stop` ends a build that is under way."""

    cache: Cache
    stop: Event = field(default_factory=Event)
    _backend_lock: Lock = field(default_factory=Lock)

    def get(self, spec: Spec) -> Cell:
        """Return the cell of a spec, built now unless it is cached. Raises CellError with the resolver's reason."""
        try:
            with lock(self.cache.lock_path(spec.id), stop=self.stop):
                return self.cache.find(spec) or self._build(spec)
        except BusyError:
            raise CellError("build", "interrupted while another process was building it") from None
        except OSError as error:
            raise CellError("build", f"cannot write to {self.cache.root}: {error.strerror or error}") from error

    def _build(self, spec: Spec) -> Cell:
        final = self.cache.directory(spec.id)
        partial = self.cache.root / f".{spec.id}.{uuid.uuid4().hex[:6]}.partial"
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            notes = self._fill(spec, partial)
            described = describe(partial / "bin" / "python")
            document = {
                "spec": {**vars(spec), "exclude_newer": spec.exclude_newer.isoformat()},
                "described": described,
                "notes": notes,
                "built": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            }
            (partial / "cell.json").write_text(json.dumps(document, indent=1))
            if final.exists():  # a damaged cell, or the cache would have had it
                shutil.rmtree(final)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        cell = self.cache.find(spec)
        if cell is None:
            raise CellError("build", f"the cell does not work where it was put, {final}")
        return cell

    def _fill(self, spec: Spec, directory: Path) -> list[str]:
        """Make the environment and install into it. Returns notes about where things came from."""
        self._uv(
            "build",
            "venv",
            "--quiet",
            "--no-project",
            "--relocatable",
            "--python",
            python_request(spec),
            str(directory),
        )
        backend, notes = self.torch_backend
        arguments = ["pip", "install", "--python", str(directory / "bin" / "python")]
        arguments += ["--exclude-newer", spec.exclude_newer.isoformat()]
        for package in spec.undated():
            arguments += ["--exclude-newer-package", f"{package}=false"]
        arguments += ["--torch-backend", backend] if backend else []
        self._uv("resolve", *arguments, *spec.requirements())
        return list(notes)

    @cached_property
    def _own_index_answers(self) -> tuple[bool, str]:
        """Whether torch's own index, which has the CPU builds, can be reached; asked once, without retries."""
        try:
            self._uv(
                "resolve",
                "pip",
                "compile",
                "--quiet",
                "--no-deps",
                "--torch-backend",
                "cpu",
                "-",
                stdin="torch\n",
                retries=0,
            )
        except CellError as error:
            return False, str(error).splitlines()[-1].strip().removeprefix("cause: ")
        return True, ""

    @property
    def torch_backend(self) -> tuple[str, tuple[str, ...]]:
        """Return uv's torch backend to ask for (empty: none), and notes about it.

        A user's `UV_TORCH_BACKEND` is left to uv. Otherwise `auto` where there is a GPU, and `cpu` where there is none,
        which saves gigabytes of CUDA libraries; without a way to torch's own index, torch comes from the usual one.
        """
        if os.environ.get("UV_TORCH_BACKEND"):
            return "", ()
        if Path("/proc/driver/nvidia/version").exists():
            return "auto", ()
        if sys.platform == "darwin":
            return "", ()  # the usual index has the CPU build there
        with self._backend_lock:
            answers, why = self._own_index_answers
        if answers:
            return "cpu", ()
        return "", (f"torch's own index with CPU builds was not reachable; torch is what the usual index has ({why})",)

    def _uv(self, stage: str, *arguments: str, stdin: str = "", retries: int | None = None) -> str:
        """Run uv to its end. Raises CellError with its reason."""
        environment = ambient.uv_environment()
        environment.setdefault("UV_NO_PROGRESS", "1")
        if retries is not None:
            environment["UV_HTTP_RETRIES"] = str(retries)
        process = subprocess.Popen(
            [uv(), *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cache.root if self.cache.root.is_dir() else None,
            start_new_session=True,
        )
        deadline = BUILD_SECONDS
        while True:
            try:
                out, err = process.communicate(stdin if stdin else None, timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                stdin = ""
                deadline -= 0.5  # type: ignore[assignment]
                if self.stop.is_set() or deadline <= 0:
                    process.kill()
                    process.communicate()
                    why = "interrupted" if self.stop.is_set() else f"not done within {BUILD_SECONDS} s"
                    raise CellError(stage, why) from None
        if process.returncode:
            raise CellError(stage, reason(err))
        return out


def python_request(spec: Spec) -> str:
    """Return what to ask uv for: this very interpreter where its minor is the wanted one, else the minor."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    return str(Path(sys.executable)) if spec.python == here else spec.python


def reason(stderr: str) -> str:
    """Return the part of uv's messages that says why it failed."""
    lines = [line.rstrip() for line in stderr.splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if line.lstrip().startswith(("error", "\u00d7"))), 0)
    return "\n".join(lines[start : start + 12]) or "uv failed without a word"


def uv() -> str:
    """Return uv's path: the one installed beside this package, else the one on PATH. Raises CellError without any."""
    beside = Path(sysconfig.get_path("scripts"), "uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if not found:
        raise CellError("build", "uv is not installed: pip install uv")
    return found
