"""What a page tells about claims: what each is worth, cell by cell, and the peaks of memory it leads to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from repro.judge.observed import Cell
from repro.judge.verdicts import verdicts
from repro.memory.compare import Difference, differences
from repro.show.facts import (
    DEPENDS,
    FAILS,
    FALSE,
    HELPS,
    NOT_JUDGED,
    OPEN,
    SILENT,
    TOLD_FROM,
    TRUE,
    WORKS,
    ClaimFacts,
    Judged,
    MemoryFacts,
    Peak,
    PeakDifference,
    Place,
    settings,
    stretches,
)
from repro.store.records import Record
from repro.vocabulary import Claim, Failure

RAN = ("resolves", "no effect", "partly", "moves it")
"""Verdicts on advice that was followed to the end of a run, so that its peak says something."""


def claim_facts(failure: Failure, records: Sequence[Record], places: Mapping[str, Place]) -> tuple[ClaimFacts, ...]:
    """Return the claims in the order of the catalogue; one with a spelling of today is there twice."""
    rows: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for row in verdicts(failure, records):
        judged: Any = row
        rows[judged["claim"], judged["spelling"]].append(
            Judged(
                places[judged["cell"]],
                judged["verdict"] or NOT_JUDGED,
                judged["detail"],
                judged["peak_before"],
                judged["peak_after"],
            )
        )
    found = []
    for claim in failure.claims:
        for spelling in ("as written", "today's"):
            its = rows.get((claim.id, spelling), [])
            if its or (spelling == "as written" and not rows):
                found.append(_claim(failure, claim, spelling, its))
    return tuple(found)


def _claim(failure: Failure, claim: Claim, spelling: str, judged: Sequence[Judged]) -> ClaimFacts:
    as_written = spelling == "as written"
    change = claim.change if as_written else (claim.today or {})
    text = [*settings(change), *(f"{package} {version}" for package, version in claim.pin.items())]
    source = next((source.says for source in failure.sources if source.id == claim.source), claim.source)
    return ClaimFacts(
        claim.id if as_written else f"{claim.id}, today's spelling",
        f"claim-{claim.id}" + ("" if as_written else "-today"),
        claim.kind,
        claim.says if as_written else claim.says_today,
        source,
        ", ".join(text),
        claim.code if as_written else "",
        _standing(claim, {item.verdict for item in judged}),
        tuple(judged),
    )


def _standing(claim: Claim, found: set[str]) -> str:
    telling = found - set(SILENT)
    good, all_good, none_good = "resolves", WORKS, HELPS if "partly" in telling else FAILS
    if claim.kind == "statement":
        good, all_good, none_good = "confirmed", TRUE, FALSE
    if not telling:
        return OPEN
    if telling == {good}:
        return all_good
    return DEPENDS if good in telling else none_good


def memory_facts(
    failure: Failure, observed: Sequence[Cell], claims: Sequence[ClaimFacts], places: Mapping[str, Place]
) -> MemoryFacts | None:
    """Put the peaks of the newest cell that measured the reported run's side by side, the highest first."""
    for cell in reversed(observed):
        plain, reported = cell.outcome_of(failure, failure.configuration()), cell.outcome_of(failure, failure.reported)
        if not reported.facts.get("peak_bytes"):
            continue
        peaks = [Peak("the reported run", "", reported.facts["peak_bytes"], str(reported.name))]
        if plain.facts.get("peak_bytes"):
            peaks.append(Peak("the plain run", "", plain.facts["peak_bytes"], str(plain.name)))
        for claim in claims:
            its = next((j for j in claim.judged if j.place.id == cell.id and j.peak_after and j.verdict in RAN), None)
            if its and its.peak_after:
                peaks.append(Peak(f"with {claim.id}", claim.anchor, its.peak_after, its.verdict))
        how = reported.facts.get("memory") or {}
        source = ", ".join(str(how[name]) for name in ("device", "source") if how.get(name))
        peaks.sort(key=lambda peak: (-peak.bytes, peak.run))
        limit = reported.facts.get("capacity")
        return MemoryFacts(
            places[cell.id].label, source, limit, tuple(peaks), *_by_release(observed, cell.transformers)
        )
    return None


def _by_release(observed: Sequence[Cell], newest: str) -> tuple[tuple[PeakDifference, ...], tuple[str, ...]]:
    """Return how peaks of other releases differ from the newest's, and the releases of which none does.

    Neighbours that differ alike are one. Cells with another torch or device are left to `repro budgets compare`.
    """
    stored = [record for cell in observed for records in cell.observations.values() for record in records[-1:]]
    usual = next(cell for cell in reversed(observed) if cell.transformers == newest)
    found: dict[str, list[Difference]] = defaultdict(list)
    for each in differences([r for r in stored if (r["torch"], r["device"]) == (usual.torch, usual.device)], newest):
        found[each.release].append(each)
    same = tuple(release for release, its in found.items() if not any(each.bytes for each in its))
    # Neighbours are joined by what a reader would see of them.
    told = {
        release: tuple(
            (each.bytes, len(each.trials), _short(each.told))
            for each in sorted(its, key=lambda each: -each.bytes)
            if abs(each.bytes) >= TOLD_FROM
        )
        for release, its in found.items()
    }
    keys = {str(value): value for value in told.values()}
    rows = stretches((release, str(value)) for release, value in told.items())
    return tuple(PeakDifference(row.where, *told) for row in rows for told in keys[row.value]), same


def _short(places: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Leave of the places' paths the file: functions that have the same name there are one."""
    held: dict[str, int] = defaultdict(int)
    for name, nbytes in places:
        path, _, function = name.rpartition(" ")
        held[f"{PurePosixPath(path).name} {function}".strip()] += nbytes
    return tuple((name, nbytes) for name, nbytes in held.items() if nbytes)
