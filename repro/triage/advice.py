"""Which advice is worth following in some releases: read off the verdicts there, never off what people say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repro.store.records import Record
from repro.triage.history import Seen
from repro.vocabulary import Claim, Failure

if TYPE_CHECKING:
    from repro.judge.verdicts import Verdict

_SILENT = (None, "not observable", "not needed")
"""Verdicts that say nothing about what advice is worth."""

_FOR = ("resolves", "confirmed")


@dataclass(frozen=True)
class Advice:
    """A claim with what became of it: `verdicts` by release; detail, evidence and spelling of the newest of them."""

    claim: Claim
    verdicts: Mapping[str, str]
    detail: str
    evidence: tuple[str, ...]
    spelling: str

    @property
    def verdict(self) -> str:
        """The verdict where all releases agree, else all of them."""
        return ", ".join(dict.fromkeys(self.verdicts.values()))

    @property
    def says(self) -> str:
        """The advice in the words of the spelling that was judged."""
        return self.claim.says if self.spelling == "as written" else self.claim.says_today

    def as_json(self) -> dict[str, Any]:
        """Return the advice for programs."""
        return {
            "claim": self.claim.id,
            "says": self.says,
            "verdict": self.verdict,
            "transformers": list(self.verdicts),
            "detail": self.detail,
            "evidence": list(self.evidence),
            "spelling": self.spelling,
            "code": self.claim.code,
        }


@dataclass(frozen=True)
class Advised:
    """Advice that cures a failure in some releases, advice that helps in none of them, and advice that depends."""

    cures: tuple[Advice, ...] = ()
    refuted: tuple[Advice, ...] = ()
    depends: tuple[Advice, ...] = ()


def advise(failure: Failure, records: Sequence[Record], near: Sequence[Seen]) -> Advised:
    """Return what each piece of advice is worth in the cells an answer rests on: in those that have the failure."""
    places = {cell.cell for cell in near if cell.affected}
    if not places:
        return Advised()
    from repro.judge.observed import cells
    from repro.judge.verdicts import judge

    observed = cells(failure, records)
    rows = [
        verdict
        for cell in observed
        if cell.id in places
        for claim in failure.claims
        for verdict in judge(failure, claim, cell, observed)
    ]
    return sort(failure, rows)


def sort(failure: Failure, rows: Iterable[Verdict]) -> Advised:
    """Sort verdicts on the claims into cures, refuted advice, and advice that depends on the cell."""
    by_claim: dict[str, list[Verdict]] = defaultdict(list)
    for row in rows:
        if row.verdict not in _SILENT:
            by_claim[row.claim].append(row)
    cures: list[Advice] = []
    refuted: list[Advice] = []
    depends: list[Advice] = []
    for claim in failure.claims:
        its_rows = _best_spelling(by_claim.get(claim.id, []))
        if not its_rows:
            continue
        good = [row.verdict in _FOR for row in its_rows]
        newest = its_rows[-1]
        verdicts = {row.transformers: str(row.verdict) for row in its_rows}
        advice = Advice(claim, verdicts, newest.detail, newest.evidence, newest.spelling)
        if not any(good):
            refuted.append(advice)
        elif claim.kind == "advice":
            (cures if all(good) else depends).append(advice)
    return Advised(tuple(cures), tuple(refuted), tuple(depends))


def _best_spelling(rows: list[Verdict]) -> list[Verdict]:
    """Return, for each cell, the row of the spelling that exists there."""
    best: dict[str, Verdict] = {}
    for row in rows:
        if row.cell not in best or best[row.cell].verdict == "unavailable":
            best[row.cell] = row
    return list(best.values())
