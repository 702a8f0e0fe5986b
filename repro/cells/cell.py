"""A cell that exists: an interpreter, and what is installed beside it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.cells.places import python_path

NEEDED = ("torch", "transformers", "accelerate", "datasets", "numpy", "jiwer", "pytest")
"""What trials import; peft is optional."""


class CellError(Exception):
    """A cell cannot be used; `stage` says how far it came, and the message says why and what to do."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage = stage


@dataclass(frozen=True)
class Cell:
    """An environment that trials can run in. `described` is what `repro.observe.describe` printed in it."""

    python: Path
    described: Mapping[str, Any]
    requested: str
    exclude_newer: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def id(self) -> str:
        """The id under which its results are stored."""
        return str(self.described["cell"])

    @property
    def transformers(self) -> str:
        """Its version of transformers."""
        return str(self.described["transformers"])

    @property
    def resolved(self) -> Mapping[str, str]:
        """Every installed package with its version."""
        return dict(self.described["resolved"])

    def fields(self) -> dict[str, Any]:
        """Return the fields of its `cell` record, the id left out."""
        facts = {key: value for key, value in self.described.items() if key != "cell"}
        return {**facts, "exclude_newer": self.exclude_newer, "requested": self.requested, "notes": list(self.notes)}


def in_cell(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables for a process in a cell: this package on its path, and nothing of the desk's."""
    environ = os.environ if environ is None else environ
    ours = ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "COVERAGE_PROCESS_START")
    kept = {name: value for name, value in environ.items() if name not in ours}
    return {**kept, "PYTHONPATH": str(python_path()), "PYTHONUNBUFFERED": "1"}


def describe(python: Path, *, timeout: float = 120) -> dict[str, Any]:
    """Return what an interpreter's environment is. Raises CellError when it does not run or says nothing sensible."""
    try:
        done = subprocess.run(
            [python, "-m", "repro.observe.describe"],
            env=in_cell(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode == 0:
            described = json.loads(done.stdout.splitlines()[-1])
            if isinstance(described, dict) and "cell" in described:
                return described
        reason = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout:.0f} s"
    except (OSError, ValueError, IndexError) as error:
        reason = str(error)
    raise CellError("build", f"the interpreter {python} does not work: {reason}")


def existing(python: Path, requested: str) -> Cell:
    """Return a user's own environment as a cell. Raises CellError when it lacks what trials need."""
    described = describe(python)
    missing = [package for package in NEEDED if package not in described["resolved"]]
    if missing:
        raise CellError(
            "build",
            f"{requested} lacks {', '.join(missing)}. To add what is missing: "
            f"uv pip install --python {python} {' '.join(missing)}",
        )
    return Cell(python, described, requested)
