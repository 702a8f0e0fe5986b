"""Records of a failure as cells would store them, for tests of what is made of stored results."""

from __future__ import annotations

import datetime
from typing import Any

from repro.catalog import find
from repro.store.records import record
from repro.vocabulary import Configuration

WHISPER = find("whisper-double-backward")
DOUBLE: dict[str, Any] = {
    "end": "raised",
    "exception": {"type": "RuntimeError", "bases": [], "message": "Trying to backward through the graph a second time"},
    "evaluations": 0,
    "generations": 0,
}
FINE: dict[str, Any] = {
    "end": "completed",
    "gradients": {"missing": [], "worst_ratio": 0.1},
    "loss_finite": True,
    "moved": True,
}
CURED = WHISPER.reported.but(use_reentrant="False")
AFFECTED = {
    "default_mode": "reentrant",
    "live_keywords": ["encoder_hidden_states"],
    "inputs_with_gradient": {"before": ["decoder", "encoder"], "after": ["decoder", "encoder"]},
}
UNAFFECTED = {**AFFECTED, "default_mode": "non-reentrant"}


def where(release: str, torch: str = "2.13.0", device: str = "cpu") -> dict[str, str]:
    return {"transformers": release, "torch": torch, "device": device}


def cell_of(release: str, torch: str = "2.13.0", device: str = "cpu") -> str:
    return f"cell-{release}-{torch}-{device}"


def cell(release: str, **more: Any) -> dict[str, Any]:
    about = {**where(release), "python": "3.11.7", "resolved": {}, "requested": f"transformers=={release}", **more}
    return record("cell", cell_of(about["transformers"], about["torch"], about["device"]), **about)


def mechanism(release: str, seen: dict[str, Any]) -> dict[str, Any]:
    return record("mechanism", cell_of(release), failure=WHISPER.id, mechanism=seen)


def observation(
    release: str,
    configuration: Configuration,
    facts: dict[str, Any],
    *,
    torch: str = "2.13.0",
    device: str = "cpu",
    **more: Any,
) -> dict[str, Any]:
    trial = WHISPER.trial(configuration)
    at = where(release, torch, device)
    about = {"failure": WHISPER.id, "trial": trial.id, "scope": trial.scope, "configuration": dict(configuration)}
    return record("observation", cell_of(release, torch, device), **about, **at, **{**facts, **more})


def night(release: str, reported: dict[str, Any], seen: dict[str, Any] | None = None, **more: Any) -> list[Any]:
    """Return the records of one cell: the plain run, the reported one, and the cured one."""
    return [
        cell(release),
        mechanism(release, seen or AFFECTED),
        observation(release, WHISPER.configuration(), FINE),
        observation(release, WHISPER.reported, reported, **more),
        observation(release, CURED, FINE),
    ]


TODAY = datetime.date(2026, 1, 31)
