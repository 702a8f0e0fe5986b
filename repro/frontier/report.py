"""What a search found, as JSON and as text: what was observed, what that proves, and what is only interpolated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from repro.frontier import strategy
from repro.frontier.question import AFFECTED, GOOD
from repro.frontier.search import Found, Probe


def report(found: Found) -> dict[str, Any]:
    """Return a search as JSON values.

    `first_affected` to `first_good_after` are of the failure alone, and null for a claim or a peak, whose values are in
    `stretches` and `edges`. Should there be several affected stretches, `first_affected` is of the first and
    `last_affected` of the last; `stretches` has all of them.
    """
    versions = found.axis.versions
    edges = [_edge(found, gap) for gap in strategy.gaps(found.seen, same=found.question.same) if gap.differs]
    return {
        "failure": found.question.failure.id,
        "claim": found.question.claim.id if found.question.claim else None,
        "of": found.question.name,
        "along": found.axis.package,
        "fixed": dict(found.axis.fixed),
        "releases": len(versions),
        **_affected(found, edges),
        "proved": all(edge["proved"] for edge in edges),
        "stretches": [
            {"value": stretch.value, "first": versions[stretch.first], "last": versions[stretch.last]}
            for stretch in strategy.stretches(found.seen, same=found.question.same)
        ],
        "edges": edges,
        "probed": [_probe(found.probes[version]) for version in versions if version in found.probes],
        "interpolated": [versions[position] for position in strategy.interpolated(found.seen)],
        "skipped": _skipped(found),
        "contradictions": [_probe(probe) for probe in found.contradictions],
        "rounds": [list(versions) for versions in found.rounds],
    }


def _affected(found: Found, edges: list[dict[str, Any]]) -> dict[str, str | None]:
    seen, versions = found.seen, found.axis.versions
    affected = sorted(position for position, value in seen.items() if value == AFFECTED)
    answer: dict[str, str | None] = dict.fromkeys(
        ("first_affected", "last_affected", "last_good_before", "first_good_after")
    )
    if affected:
        answer["first_affected"], answer["last_affected"] = versions[affected[0]], versions[affected[-1]]
        for edge in edges:
            if edge["to"] == answer["first_affected"] and edge["before"] == GOOD:
                answer["last_good_before"] = edge["from"]
            if edge["from"] == answer["last_affected"] and edge["after"] == GOOD:
                answer["first_good_after"] = edge["to"]
    return answer


def _edge(found: Found, gap: strategy.Gap) -> dict[str, Any]:
    """Return a change between two seen releases; it is proved when nothing that could be installed lies between them.

    `open` are the releases in between that could not be looked at: the change may be in any of them.
    """
    versions, seen = found.axis.versions, found.seen
    first, last = versions[gap.left], versions[gap.right]
    return {
        "from": first,
        "before": seen[gap.left],
        "to": last,
        "after": seen[gap.right],
        "proved": not gap.unseen and not gap.unusable,
        "open": [versions[position] for position in (*gap.unseen, *gap.unusable)],
        "yanked": [y for y in found.axis.yanked if Version(first) < Version(y) < Version(last)],
    }


def _skipped(found: Found) -> dict[str, str]:
    """Return the releases that say nothing, with the reason: those beyond the outermost observed ones included."""
    between = {found.axis.versions[position] for position in strategy.interpolated(found.seen)}
    beyond = "not tried: it lies beyond releases that could not be run"
    skipped = {
        version: found.unusable.get(version, beyond)
        for version in found.axis.versions
        if version in found.unusable or (version not in found.probes and version not in between)
    }
    return skipped | dict.fromkeys(found.axis.yanked, "yanked from the index")


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "version": probe.version,
        "value": probe.answer.value,
        "detail": probe.answer.why,
        "cells": list(probe.cells),
        "reused": probe.reused,
        "evidence": {trial: list(ids) for trial, ids in (probe.answer.evidence or {}).items()},
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield a report as text."""
    fixed = ", ".join(f"{name} {version}" for name, version in found["fixed"].items())
    yield f"{found['of']} along {found['along']} ({found['releases']} releases; {fixed})"
    yield ""
    for stretch in found["stretches"]:
        alone = stretch["first"] == stretch["last"]
        yield f"  {said(stretch['value'])}: {stretch['first']}" + ("" if alone else f" to {stretch['last']}")
    yield ""
    for edge in found["edges"]:
        between = f"; yanked between them: {', '.join(edge['yanked'])}" if edge["yanked"] else ""
        how = (
            f"proved, both observed{between}" if edge["proved"] else f"open: {', '.join(edge['open'])} lie between them"
        )
        yield f"  {edge['from']} ({said(edge['before'])}) -> {edge['to']} ({said(edge['after'])}): {how}"
    yield from _how(found)


def _how(found: dict[str, Any]) -> Iterator[str]:
    probes = {probe["version"]: probe for probe in found["probed"]}
    known = [f"{version} {said(probe['value'])}" for version, probe in probes.items() if probe["reused"]]
    if known:
        yield f"  observed before: {', '.join(known)}"
    if found["rounds"]:
        rounds = "a round" if len(found["rounds"]) == 1 else f"{len(found['rounds'])} rounds"
        yield f"  observed {len(probes) - len(known)} in {rounds}:"
    for number, asked in enumerate(found["rounds"], 1):
        told = ", ".join(f"{version} {said(probes[version]['value'])}" for version in asked)
        yield f"    {number}. {told}"
    yield f"  interpolated: {len(found['interpolated'])} releases between observed ones that are alike"
    for reason, versions in _by_reason(found["skipped"]).items():
        yield f"  skipped {', '.join(versions)}: {reason.splitlines()[0]}"
    for probe in found["contradictions"]:
        yield f"  contradictory in {probe['version']}: {probe['detail']}"
        for trial, ids in probe["evidence"].items():
            yield f"    {trial}: {', '.join(ids)}"


def _by_reason(skipped: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for version, reason in skipped.items():
        reasons.setdefault(reason, []).append(version)
    return reasons


def said(value: Any) -> str:
    """Return what was seen of a release as text. A peak is a number of bytes."""
    if value is None:
        return "not known"
    return f"{value:,} bytes" if isinstance(value, int) else str(value)
