"""The verdict on every claim in every cell, from stored observations alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from repro.judge.observed import Cell, Outcome, cells, version
from repro.store.records import Record
from repro.vocabulary import RAISES_OTHER, REFUSED, TRAINS, Claim, Configuration, Failure

VERDICTS = (
    "resolves",
    "no effect",
    "partly",
    "moves it",
    "unavailable",
    "not needed",
    "not observable",
    "confirmed",
    "refuted",
)

LOWER_PEAK = 0.02
"""Share by which a peak has to fall for advice that leaves the failure in place to count as helping *partly*."""


@dataclass(frozen=True)
class Verdict:
    """One claim judged in one cell. `verdict` is None where it could not be judged, and `detail` says why.

    `evidence` are ids of observations. `spelling` tells advice followed as written from the same in today's spelling.
    Peaks are bytes, where the failure is about memory.
    """

    failure: str
    claim: str
    transformers: str
    torch: str
    device: str
    cell: str
    verdict: str | None
    detail: str
    evidence: tuple[str, ...]
    spelling: str = "as written"
    peak_before: int | None = None
    peak_after: int | None = None


def verdicts(failure: Failure, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Judge every claim in every cell observed; rows are ordered by release, then as the claims are declared."""
    return verdicts_in(failure, cells(failure, records))


def verdicts_in(failure: Failure, observed: Sequence[Cell]) -> list[dict[str, Any]]:
    """Judge every claim in every one of some cells, in their order."""
    return [
        dict(vars(verdict))
        for cell in observed
        for claim in failure.claims
        for verdict in judge(failure, claim, cell, observed)
    ]


def judge(failure: Failure, claim: Claim, cell: Cell, observed: Sequence[Cell]) -> list[Verdict]:
    """Judge one claim in one cell; advice whose argument was renamed is judged in both spellings."""
    if claim.needs_device and cell.device != claim.needs_device:
        return [_verdict(failure, claim, cell, "not observable", claim.why_device or f"needs {claim.needs_device}")]
    if cell.lacks_the_model:
        return [_verdict(failure, claim, cell, "not needed", "this release has no such model")]
    if claim.kind == "statement":
        return [_statement(failure, claim, cell)]
    if claim.pin:
        return [_pinned(failure, claim, cell, observed)]
    base = claim.base or failure.reported
    changes = [("as written", claim.change)] + ([("today's", claim.today)] if claim.today else [])
    return [_advice(failure, claim, cell, base, base.but(**change), spelling) for spelling, change in changes]


def _verdict(
    failure: Failure, claim: Claim, cell: Cell, verdict: str | None, detail: str, *outcomes: Outcome, **more: object
) -> Verdict:
    evidence = tuple(record for outcome in outcomes for record in outcome.evidence)
    where = (cell.transformers, cell.torch, cell.device, cell.id)
    return Verdict(failure.id, claim.id, *where, verdict, detail, evidence, **more)  # type: ignore[arg-type]


def _advice(
    failure: Failure, claim: Claim, cell: Cell, base: Configuration, changed: Configuration, spelling: str
) -> Verdict:
    before, after = cell.outcome_of(failure, base), cell.outcome_of(failure, changed)
    peaks = {"peak_before": before.facts.get("peak_bytes"), "peak_after": after.facts.get("peak_bytes")}
    verdict, detail = _change(before, after)
    return _verdict(failure, claim, cell, verdict, detail, before, after, spelling=spelling, **peaks)


def _change(before: Outcome, after: Outcome) -> tuple[str | None, str]:
    """Name what a change did, from the outcomes without and with it."""
    if before.name is None:
        return None, f"without the advice: {before.why}"
    if before.name == TRAINS:
        return "not needed", "the reported run trains here"
    if before.name in (RAISES_OTHER, REFUSED):
        return None, f"the reported run does not get as far as the failure here: {_error(before)}"
    if after.name is None:
        return None, f"with the advice: {after.why}"
    if after.name == REFUSED:
        return "unavailable", _error(after)
    if after.name == TRAINS:
        return "resolves", f"{before.name} -> {TRAINS}"
    if after.name != before.name:
        detail = f"{before.name} -> {after.name}"
        return "moves it", f"{detail}: {_error(after)}" if after.facts.get("exception") else detail
    peak, lower = before.facts.get("peak_bytes"), after.facts.get("peak_bytes")
    if peak and lower and lower <= peak * (1 - LOWER_PEAK):
        return "partly", f"peak {peak} -> {lower} bytes, still: {after.name}"
    return "no effect", f"still: {after.name}"


def _error(outcome: Outcome) -> str:
    error = outcome.facts.get("exception")
    if not error:
        return "no exception was stored"
    first = next(iter(error["message"].strip().splitlines()), "")
    return f"{error['type']}: {first[:160]}" if first else str(error["type"])


def _statement(failure: Failure, claim: Claim, cell: Cell) -> Verdict:
    looked_at = [cell.outcome_of(failure, c) for c in claim.looks_at or (claim.base or failure.reported,)]
    reported = cell.outcome_of(failure, claim.base or failure.reported)
    if claim.about_failure and reported.name == TRAINS:
        return _verdict(failure, claim, cell, "not needed", "there is no failure to explain here", reported)
    missing = [outcome.why for outcome in looked_at if outcome.name is None]
    if missing:
        return _verdict(failure, claim, cell, None, missing[0], *looked_at)
    assert claim.holds is not None
    holds = claim.holds([outcome.facts for outcome in looked_at])
    if holds is None:
        return _verdict(failure, claim, cell, None, "what was observed cannot tell", *looked_at)
    return _verdict(failure, claim, cell, "confirmed" if holds else "refuted", "by the facts observed", *looked_at)


def _pinned(failure: Failure, claim: Claim, cell: Cell, observed: Sequence[Cell]) -> Verdict:
    base = claim.base or failure.reported
    before = cell.outcome_of(failure, base)
    if before.name in (None, TRAINS):
        return _verdict(failure, claim, cell, *_change(before, before), before)
    there = cell_to_move_to(claim, cell, observed)
    if there is None:
        wanted = ", ".join(f"{name} {value}" for name, value in claim.pin.items())
        lacking = "newer release of transformers" if claim.pin == {"transformers": "latest"} else f"cell with {wanted}"
        return _verdict(failure, claim, cell, None, f"no {lacking} was observed", before)
    after = there.outcome_of(failure, base)
    verdict, detail = _change(before, after)
    detail = f"{detail} (in transformers {there.transformers}, torch {there.torch})"
    return _verdict(failure, claim, cell, verdict, detail, before, after)


def cell_to_move_to(claim: Claim, cell: Cell, observed: Sequence[Cell]) -> Cell | None:
    """Return the observed cell that advice to pin or upgrade leads to from a cell."""
    others = [other for other in observed if other.device == cell.device and other.id != cell.id]
    if "torch" in claim.pin:
        same = [other for other in others if other.transformers == cell.transformers]
        older = [other for other in same if version(other.torch) < version(cell.torch)]
        return min(older, key=lambda other: other.order) if older else None
    wanted = claim.pin["transformers"]
    if wanted == "latest":
        newer = [other for other in others if version(other.transformers) > version(cell.transformers)]
        return max(newer, key=lambda other: version(other.transformers)) if newer else None
    exact = [other for other in others if other.transformers == wanted]
    exact.sort(key=lambda other: other.torch != cell.torch)
    return exact[0] if exact else None
