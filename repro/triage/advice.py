"""Which advice is worth following in some releases: read off the verdicts there, never off what people say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.store.records import Record
from repro.triage.history import Seen
from repro.vocabulary import Claim, Failure

_SILENT = ("not observable", "not needed", "not observed", "")
"""Verdicts that say nothing about what advice is worth."""

_FOR = ("resolves", "confirmed")


@dataclass(frozen=True)
class Advice:
    """A claim with what became of it: `verdicts` by release, and the evidence of the newest of them."""

    claim: Claim
    verdicts: Mapping[str, str]
    evidence: str
    spelling: str = ""

    @property
    def verdict(self) -> str:
        """The verdict where all releases agree, else all of them."""
        return ", ".join(dict.fromkeys(self.verdicts.values()))

    def as_json(self) -> dict[str, Any]:
        """Return the advice for programs."""
        return {
            "claim": self.claim.id,
            "says": self.claim.says,
            "verdict": self.verdict,
            "transformers": list(self.verdicts),
            "evidence": self.evidence,
            "spelling": self.spelling,
            "code": self.claim.code,
        }


def advise(
    failure: Failure, records: Sequence[Record], cells: Sequence[Seen]
) -> tuple[tuple[Advice, ...], tuple[Advice, ...], tuple[Advice, ...]]:
    """Return the advice that cures the failure in these cells, that which does not in any, and that which depends."""
    if not cells:
        return (), (), ()
    from repro.judge.verdicts import verdicts

    return sort(failure, verdicts(failure, records), {cell.transformers for cell in cells})


def sort(
    failure: Failure, rows: Iterable[Mapping[str, Any]], releases: set[str]
) -> tuple[tuple[Advice, ...], tuple[Advice, ...], tuple[Advice, ...]]:
    """Sort verdicts on the claims in some releases into cures, refuted advice, and advice that depends."""
    by_claim: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["transformers"] in releases and row["verdict"] not in _SILENT:
            by_claim[row["claim"]].append(row)
    cures, refuted, depends = [], [], []
    for claim in failure.claims:
        its_rows = _best_spelling(by_claim.get(claim.id, []))
        if not its_rows:
            continue
        good = [row["verdict"] in _FOR for row in its_rows]
        advice = Advice(
            claim,
            {row["transformers"]: row["verdict"] for row in its_rows},
            str(its_rows[-1].get("evidence") or ""),
            str(its_rows[-1].get("spelling") or ""),
        )
        if claim.kind == "statement":
            if not any(good):
                refuted.append(advice)
        elif all(good):
            cures.append(advice)
        elif not any(good):
            refuted.append(advice)
        else:
            depends.append(advice)
    return tuple(cures), tuple(refuted), tuple(depends)


def _best_spelling(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return, per release and cell, the row of the spelling that exists there."""
    best: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in rows:
        key = (row["transformers"], row["torch"], row["device"])
        if key not in best or best[key]["verdict"] == "unavailable":
            best[key] = row
    return list(best.values())
