"""The schema of results: what a line of a results file holds.

Every record is one JSON object on one line and has:

* `schema`: the version of this schema, an integer;
* `kind`: one of `KINDS`;
* `id`: unique; two records with the same id are the same record, which is what makes merging safe;
* `time`: UTC, ISO 8601, when the record was written;
* `cell`: the id of the cell it belongs to.

By kind, besides:

* `cell`: `transformers`, `torch`, `python`, `device`, `resolved` (package to version), `exclude_newer` (ISO date up to
  which the companions were resolved, or null), `requested` (what the user asked for);
* `mechanism`: `failure`, `mechanism` (what the probe saw);
* `started`: `failure`, `trial`, `scope`, `configuration`, `pid`: written before a trial, so that a crash names it;
* `observation`: `failure`, `trial`, `scope`, `configuration` (which may leave out factors at their default level), and
  the facts of the trial, among them `end`, `seconds`, `exception`, and per failure `losses`, `gradients`, `proofs`,
  `peak_bytes`. `end` is `completed`, `raised`, `refused` (the release has no such argument), or one of
  `repro.vocabulary.UNFINISHED`;
* `census`: `family`, `every_class` (whether every class of it was run), `model` (type), `class`, `use_reentrant`, and
  the facts of that class: `end`, `engaged` (calls of the checkpoint function), `gradients`, `exception`, `reason`. Of a
  family without a class that supports checkpointing there is one record, whose `class` is null;
* `cell failed`: `requested`, `stage` (`resolve`, `build`, `pytest`), `reason`: a cell that yielded nothing, and why.

Observations repeat `transformers`, `torch` and `device` of their cell, so that one line can be read by itself. A reader
accepts records with fields it does not know; it refuses a newer `schema`.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping
from typing import Any

SCHEMA = 1
"""Raised when the meaning of an existing field changes; a new field does not raise it."""

KINDS = ("cell", "mechanism", "started", "observation", "cell failed", "census")
JUDGED = ("cell", "mechanism", "observation")
"""What outcomes and verdicts are made of; half of all records only say that a trial was begun."""

Record = Mapping[str, Any]


def now() -> str:
    """Return the current time in UTC, ISO 8601 with microseconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def record(kind: str, cell: str, **fields: Any) -> dict[str, Any]:
    """Build a record with a new id and the current time. Raises ValueError for a kind that the schema does not have."""
    if kind not in KINDS:
        raise ValueError(f"no record kind {kind!r}; the schema has: {', '.join(KINDS)}")
    return {"schema": SCHEMA, "kind": kind, "id": uuid.uuid4().hex, "time": now(), "cell": cell, **fields}


def dump(record: Record) -> str:
    """Return the record as one line of strict JSON, without the line end. A float that JSON lacks becomes a string."""
    try:
        return json.dumps(record, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(record), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
