"""Holding the census of one release against that of another: pure functions over stored rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from repro.census import verdicts
from repro.store.records import Record

ABSENT = "absent"
"""Stands for a class that one of two releases does not have, or that was not run there."""

Row = Mapping[str, Any]
Key = tuple[str, str, bool]


def rows(records: Iterable[Record], transformers: str) -> list[dict[str, Any]]:
    """Return the newest result per class and kind of checkpointing in one release, judged anew from its facts."""
    newest: dict[Key, Record] = {}
    for record in records:  # in the order of their time
        judged = record["kind"] == "census" and record["class"] is not None
        if judged and record.get("transformers") == transformers:
            newest[_key(record)] = record
    return [
        {
            "model": record["model"],
            "class": record["class"],
            "use_reentrant": record["use_reentrant"],
            "verdict": verdicts.verdict(record),
            "detail": verdicts.detail(record),
            "transformers": transformers,
            "engaged": record.get("engaged", 0),
            "family": record["family"],
            "lacks": verdicts.lacking(record),
            "seconds": record.get("seconds"),
            "peak_rss": record.get("peak_rss"),
            "record": record["id"],
        }
        for _, record in sorted(newest.items())
    ]


def releases(records: Iterable[Record]) -> list[str]:
    """Return the releases of transformers that have census results."""
    return sorted({str(record["transformers"]) for record in records if record["kind"] == "census"})


def against(here: Iterable[Row], there: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows of this release, each with the verdict of the other and what the change means.

    `change` is `same`, `new fault`, `fault gone`, `other fault`, `changed`, `added` or `removed`; a class that only the
    other release has comes last, with the verdict `absent`.
    """
    others = {_key(row): row for row in there}
    joined = []
    for row in here:
        other = others.pop(_key(row), None)
        before = str(other["verdict"]) if other else ABSENT
        joined.append({**row, "against": before, "change": _change(before, str(row["verdict"]))})
    for row in others.values():
        gone = {**row, "verdict": ABSENT, "detail": "", "against": row["verdict"], "change": "removed"}
        joined.append(gone)
    return joined


def _change(before: str, now: str) -> str:
    if before == now:
        return "same"
    if before == ABSENT:
        return "added"
    was, is_now = before in verdicts.FAULTS, now in verdicts.FAULTS
    if was and is_now:
        return "other fault"
    if is_now:
        return "new fault" if before == verdicts.EQUAL else "changed"
    return "fault gone" if was and now == verdicts.EQUAL else "changed"


def _key(row: Row) -> Key:
    return str(row["model"]), str(row["class"]), bool(row["use_reentrant"])
