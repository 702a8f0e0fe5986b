"""Running the census from the desk: ask an environment what it has, start pytest there, go on from what is stored."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.census import compare
from repro.store.reader import read
from repro.store.records import Record

_ASK = """
import importlib.util, json, pathlib
from repro.census import families
print(json.dumps({
    "transformers": families.transformers_version(),
    "all": families.all_families(),
    "speech": families.speech_families(),
    "pytest": importlib.util.find_spec("pytest") is not None,
    "xdist": importlib.util.find_spec("xdist") is not None,
}))
"""


class CensusError(Exception):
    """The census could not run; the message says why and what to do."""


@dataclass(frozen=True)
class Environment:
    """A Python with transformers, and what it told about itself."""

    python: Path
    transformers: str
    families: tuple[str, ...]
    speech: tuple[str, ...]
    has_xdist: bool


@dataclass(frozen=True)
class Plan:
    """What is to be run: families, which of them with every class, how many at a time, under which limits."""

    families: tuple[str, ...]
    every_class: bool
    jobs: int
    seconds: float
    gibibytes: float


def environment(path: Path | None) -> Environment:
    """Ask an environment (a virtual environment or a Python; this one when None). Raises CensusError."""
    python = _python(path)
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False, env=_variables())
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["no output"])[-1]
        raise CensusError(f"{python} cannot run the census: {last}. It needs torch, transformers and pytest.")
    told: dict[str, Any] = json.loads(asked.stdout)
    if not told["pytest"]:
        raise CensusError(f"{python} has no pytest: install it there, census trials are pytest items.")
    return Environment(python, told["transformers"], tuple(told["all"]), tuple(told["speech"]), bool(told["xdist"]))


def finished(records: Sequence[Record], transformers: str, *, every_class: bool) -> set[str]:
    """Return the families that need not be run again: those with results for this release, as thorough as asked for."""
    return {
        str(record["family"])
        for record in records
        if record["kind"] == "census"
        and record.get("transformers") == transformers
        and (record.get("every_class") or not every_class)
    }


def stored(results: Path) -> tuple[Record, ...]:
    """Return the records of a results directory; none when it does not exist yet."""
    return read(results).records if results.exists() else ()


def run(where: Environment, plan: Plan, results: Path) -> None:
    """Run families as pytest items in an environment; results are stored family by family. Raises CensusError."""
    if not plan.families:
        return
    with tempfile.TemporaryDirectory(prefix="repro-census-") as scratch:
        listing, log, said = (Path(scratch) / name for name in ("families", "workers.log", "pytest.log"))
        listing.write_text("\n".join(plan.families) + "\n", encoding="utf-8")
        command = [
            *(str(where.python), "-m", "pytest", str(Path(__file__).with_name("items.py"))),
            *("--noconftest", "-p", "repro.census.plugin", "-p", "no:cacheprovider", "-q", "--tb=short"),
            *("-c", _empty_settings(Path(scratch)), "--rootdir", scratch),
            *("--census-families", str(listing), "--census-results", str(results.resolve())),
            *("--census-log", str(log), "--census-progress"),
            *("--census-seconds", str(plan.seconds), "--census-bytes", str(int(plan.gibibytes * 2**30))),
            *(["--census-every-class"] if plan.every_class else []),
            *(["-n", str(plan.jobs), "--dist", "worksteal"] if where.has_xdist and plan.jobs > 1 else []),
        ]
        with open(said, "w", encoding="utf-8") as output:
            code = subprocess.run(command, stdout=output, check=False, env=_variables(), cwd=scratch).returncode
        if code:
            tail = said.read_text(encoding="utf-8").strip()[-1500:]
            worker = log.read_text(encoding="utf-8").strip()[-800:] if log.exists() else ""
            raise CensusError(
                f"pytest in {where.python} ended with status {code}; what was done before is stored, and the same "
                f"command goes on from there.\n{tail}\n{worker}".rstrip()
            )


def families_of(name: str, where: Environment, records: Sequence[Record]) -> tuple[str, ...]:
    """Return the families that a user's word means: a family, or a model type seen before. Raises CensusError."""
    known = {str(record["family"]) for record in records if record["kind"] == "census" and record["model"] == name}
    spelled = name.replace("-", "_")
    if spelled in where.families:
        known.add(spelled)
    found = tuple(sorted(known & set(where.families)))
    if not found:
        from difflib import get_close_matches

        near = get_close_matches(spelled, where.families, 3)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise CensusError(
            f"transformers {where.transformers} has no model family {name!r} with gradient checkpointing{hint}"
        )
    return found


def summary(rows: Sequence[compare.Row]) -> dict[str, Any]:
    """Count classes and model types, built and not, and verdicts per kind of checkpointing."""
    types = {row["model"] for row in rows}
    built = {row["model"] for row in rows if row["verdict"] != "not built"}
    counts: dict[str, int] = {}
    for row in rows:
        key = f"{row['verdict']} ({'reentrant' if row['use_reentrant'] else 'non-reentrant'})"
        counts[key] = counts.get(key, 0) + 1
    return {
        "classes": len({(row["model"], row["class"]) for row in rows}),
        "model_types": len(types),
        "model_types_built": len(built),
        "verdicts": dict(sorted(counts.items())),
    }


def _empty_settings(scratch: Path) -> str:
    # An ini file of its own keeps the settings of whatever project the user stands in out of the census.
    path = scratch / "pytest.ini"
    path.write_text("[pytest]\n", encoding="utf-8")
    return str(path)


def _python(path: Path | None) -> Path:
    if path is None:
        return Path(sys.executable)
    for candidate in (path, path / "bin" / "python", path / "Scripts" / "python.exe"):
        if candidate.is_file():
            return candidate
    raise CensusError(f"{path} is neither a Python nor a virtual environment")


def _variables() -> dict[str, str]:
    import os

    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(entry for entry in (root, os.environ.get("PYTHONPATH")) if entry)
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
