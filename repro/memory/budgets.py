"""Budgets: the peaks a maintainer allows, in a TOML file that people read and review. Needs no torch.

One `[[budget]]` per trial, device and cell. An alarm goes off in both directions: a peak that fell is news as well, and
a run in which the evaluation never happened has a wonderfully low one.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

DEFAULT_FILE = Path("budgets.toml")
State = Literal["within", "over", "under", "not observed", "no budget", "cell not run"]
ALARMS: tuple[State, ...] = ("over", "under", "not observed")

_HEADER = """\
# Peaks of device memory, in bytes, and how far one may stray from them, either way. `repro budgets check` compares
# them with stored results; `repro budgets update` rewrites this file from them, after showing what would change.
# Bytes of an emulated device and of a CUDA device are never compared: they do not run the same kernels.
"""


class BudgetFileError(Exception):
    """A budget file cannot be used; the message says where, why, and what to do."""


@dataclass(frozen=True, order=True)
class Key:
    """What a budget is for."""

    failure: str
    trial: str
    device: str
    transformers: str
    torch: str

    @property
    def rerun(self) -> str:
        """The command that observes this peak, and the others with a budget there, again."""
        if self.device == "cuda":
            return f"repro run {self.failure} --trial {self.trial}"
        cell = f"--transformers {self.transformers} --torch {self.torch}"
        return f"repro matrix {cell} --failures {self.failure} --trial-set budgeted --again"

    def __str__(self) -> str:
        return f"{self.trial} on {self.device}, transformers {self.transformers}, torch {self.torch}"


@dataclass(frozen=True)
class Budget:
    """A peak in bytes and the bytes it may stray by; what ran, the law it comes from, and when and how it was made."""

    key: Key
    run: str
    bytes: int
    tolerance: int
    law: str
    date: datetime.date
    made: str


@dataclass(frozen=True)
class Check:
    """One budget held against one observation. `holders` are the largest holders at the observed peak."""

    key: Key
    state: State
    budget: Budget | None = None
    observed: int | None = None
    holders: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.budget is None or self.observed is None:
            known = self.budget.bytes if self.budget else self.observed
            return f"{self.state}: {self.key} ({known:,} bytes)"
        difference = self.observed - self.budget.bytes
        text = (
            f"{self.state}: {self.key} ({self.budget.run}): observed {self.observed:,} bytes, "
            f"budget {self.budget.bytes:,} ± {self.budget.tolerance:,}, difference {difference:+,}"
        )
        if self.state == "within":
            return text
        held = "".join(f"\n    holds {line}" for line in self.holders)
        return f"{text}{held}\n    run again: {self.key.rerun}"


_FIELDS: dict[str, type] = {
    "failure": str,
    "trial": str,
    "device": str,
    "transformers": str,
    "torch": str,
    "run": str,
    "bytes": int,
    "tolerance": int,
    "law": str,
    "date": datetime.date,
    "made": str,
}


def read(path: Path, failures: Iterable[str] | None = None) -> dict[Key, Budget]:
    """Read a budget file. `failures`, when given, are the ids that exist.

    Raises BudgetFileError for a missing or damaged file, a missing or nonsensical field, an unknown failure, or two
    budgets for one thing.
    """
    try:
        content = _load_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BudgetFileError(
            f"no budget file at {path}: name one with --file, or make one: repro budgets update"
        ) from error
    except (OSError, ValueError) as error:
        raise BudgetFileError(f"{path} cannot be read as TOML: {error}") from error
    entries = content.get("budget", [])
    if not isinstance(entries, list) or set(content) - {"budget"}:
        raise BudgetFileError(f"{path}: expected nothing but [[budget]] tables")
    known = None if failures is None else set(failures)
    found: dict[Key, Budget] = {}
    for number, entry in enumerate(entries, 1):
        budget = _parse(entry, f"{path}, budget {number}", known)
        if budget.key in found:
            raise BudgetFileError(f"{path}, budget {number}: a second budget for {budget.key}; remove one of the two")
        found[budget.key] = budget
    return found


def _parse(entry: Mapping[str, Any], where: str, failures: set[str] | None) -> Budget:
    for name, kind in _FIELDS.items():
        if name not in entry:
            raise BudgetFileError(f"{where}: field {name!r} is missing")
        if not isinstance(entry[name], kind) or isinstance(entry[name], bool):
            raise BudgetFileError(f"{where}: {name} is {entry[name]!r}; it must be of type {kind.__name__}")
    unknown = set(entry) - set(_FIELDS)
    if unknown:
        raise BudgetFileError(f"{where}: unknown field {sorted(unknown)[0]!r}; known: {', '.join(_FIELDS)}")
    if entry["bytes"] <= 0 or entry["tolerance"] < 0:
        raise BudgetFileError(f"{where}: bytes must be positive and tolerance not negative")
    if failures is not None and entry["failure"] not in failures:
        raise BudgetFileError(f"{where}: no failure {entry['failure']!r}; known: {', '.join(sorted(failures))}")
    key = Key(*(entry[name] for name in Key.__dataclass_fields__))
    return Budget(key, *(entry[name] for name in ("run", "bytes", "tolerance", "law", "date", "made")))


def dump(budgets: Iterable[Budget]) -> str:
    """Return the text of a budget file, in an order that makes for small differences."""
    tables = [_HEADER]
    for budget in sorted(budgets, key=lambda each: each.key):
        key = "\n".join(f"{name} = {_quote(getattr(budget.key, name))}" for name in Key.__dataclass_fields__)
        tables.append(
            f"[[budget]]\n{key}\nrun = {_quote(budget.run)}\n"
            f"bytes = {budget.bytes:_}\ntolerance = {budget.tolerance:_}\n"
            f"law = {_quote(budget.law)}\ndate = {budget.date.isoformat()}\nmade = {_quote(budget.made)}\n"
        )
    return "\n".join(tables)


def peaks(observations: Iterable[Mapping[str, Any]]) -> dict[Key, Mapping[str, Any]]:
    """Return the last observation with a peak for each thing a budget can be for. Unmetered trials have none."""
    found: dict[Key, Mapping[str, Any]] = {}
    for record in observations:
        if isinstance(record.get("peak_bytes"), int) and record.get("end") in ("completed", "raised"):
            found[key_of(record)] = record
    return found


def key_of(record: Mapping[str, Any]) -> Key:
    """Return what an observation's budget would be for. A metered trial names the device that was metered."""
    device = (record.get("memory") or {}).get("device") or record["device"]
    # Builds of one torch for several kinds of CUDA are the same on the emulated device, which is a CPU.
    torch = record["torch"] if device == "cuda" else record["torch"].partition("+")[0]
    return Key(record["failure"], record["trial"], device, record["transformers"], torch)


def check(budgets: Mapping[Key, Budget], observations: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Hold budgets against observations, in the order of their keys.

    A budget whose cell was run without its trial being observed is an alarm; one whose cell was not run is only said.
    """
    observed = peaks(observations)
    cells = {(key.device, key.transformers, key.torch) for key in observed}
    checks = []
    for key in sorted({*budgets, *observed}):
        budget, record = budgets.get(key), observed.get(key)
        if record is None:
            ran = (key.device, key.transformers, key.torch) in cells
            checks.append(Check(key, "not observed" if ran else "cell not run", budget))
        elif budget is None:
            checks.append(Check(key, "no budget", None, record["peak_bytes"]))
        else:
            checks.append(Check(key, _state(budget, record["peak_bytes"]), budget, record["peak_bytes"], _held(record)))
    return checks


def _state(budget: Budget, observed: int) -> State:
    if abs(observed - budget.bytes) <= budget.tolerance:
        return "within"
    return "over" if observed > budget.bytes else "under"


def _held(record: Mapping[str, Any]) -> tuple[str, ...]:
    # A run that did not fit was run again with room: its holders, not those of the one that was cut short.
    held = record.get("largest_holders") or (record.get("memory") or {}).get("holders", ())
    return tuple(f"{each['bytes']:,} bytes in {each['blocks']} blocks: {each['made_at']}" for each in held[:4])


def update(
    budgets: Mapping[Key, Budget], observations: Iterable[Mapping[str, Any]], date: datetime.date
) -> dict[Key, Budget]:
    """Return budgets as observed: a peak outside of its tolerance is replaced, a new one added, the rest kept.

    The law and the tolerance of a known budget stay; a new one takes `run` and `law` from its observation, if there.
    """
    new = dict(budgets)
    for key, record in peaks(observations).items():
        known, peak, made = budgets.get(key), record["peak_bytes"], f"repro budgets update, after {key.rerun}"
        if known is None:
            new[key] = Budget(key, record.get("run", ""), peak, 0, record.get("law", ""), date, made)
        elif _state(known, peak) != "within":
            new[key] = Budget(key, known.run, peak, known.tolerance, known.law, date, made)
    return new


def write(path: Path, budgets: Iterable[Budget]) -> None:
    """Write a budget file, whole or not at all."""
    scratch = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(dump(budgets), encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise BudgetFileError(f"cannot write {path}: {error.strerror}") from error


def _quote(text: str) -> str:
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _load_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)
