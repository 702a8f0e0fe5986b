"""Starting a minimization from the desk: one pytest, in an environment, with the one item that minimizes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from repro.cells.places import PACKAGE
from repro.matrix.attempt import PLUGIN, environment
from repro.vocabulary import Configuration, Failure, Scope

TRIALS_AT_MOST = 60
"""Far more trials than a minimization makes; the time limit of the whole is this many times that of a trial."""


class MinimizeError(Exception):
    """Nothing was found, because the process ended early; the message has its last words."""


def minimize(
    failure: Failure, start: Configuration, scope: Scope, python: Path, results: Path, trial_seconds: float
) -> dict[str, Any]:
    """Run the minimization and return what it found. Raises MinimizeError."""
    with tempfile.TemporaryDirectory(prefix="repro-") as scratch:
        asked, found = Path(scratch, "asked.json"), Path(scratch, "found.json")
        asked.write_text(json.dumps({"failure": failure.id, "scope": scope, "configuration": dict(start)}))
        item = PACKAGE / "minimize" / "item.py"
        words = [str(python), "-m", "pytest", "-p", PLUGIN, "-p", "repro.minimize.plugin", "-p", "no:cacheprovider"]
        words += ["-c", os.devnull, "--rootdir", str(item.parent), "--noconftest", "-q", "--tb=short", "--no-header"]
        words += [str(item), "--results", str(results.absolute()), "--trial-seconds", str(trial_seconds)]
        words += ["--minimize", str(asked), "--minimized", str(found)]
        try:
            done = subprocess.run(
                words,
                env=environment(),
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=trial_seconds * TRIALS_AT_MOST,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MinimizeError(f"not done within {error.timeout:g} s") from None
        if not found.exists():
            raise MinimizeError("\n".join((done.stdout + done.stderr).splitlines()[-15:]))
        return dict(json.loads(found.read_text()))
