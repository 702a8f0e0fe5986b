"""The search: asks the strategy, has releases looked at, reads the answers off what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from repro.frontier import strategy
from repro.frontier.question import Answer, Question
from repro.judge.observed import Cell, cells
from repro.store.records import Record

Look = Callable[[Sequence[str]], Mapping[str, str]]
"""Has versions looked at, so that their observations are stored; returns those that could not be, with the reason."""


@dataclass(frozen=True)
class Axis:
    """What varies: the versions of one package, oldest first, while the rest of a cell is fixed.

    `yanked` are versions that no installer picks: they are not among the others, and never looked at. `fixed` are the
    versions of the other packages.
    """

    package: str
    versions: tuple[str, ...]
    yanked: tuple[str, ...]
    fixed: Mapping[str, str]


@dataclass(frozen=True)
class Probe:
    """A release and what was seen of it, in which cells."""

    version: str
    answer: Answer
    cells: tuple[str, ...]
    reused: bool


@dataclass(frozen=True)
class Found:
    """The end of a search. `rounds` are the versions that were looked at, in order, as they were asked for."""

    question: Question
    axis: Axis
    probes: Mapping[str, Probe]
    unusable: Mapping[str, str]
    rounds: tuple[tuple[str, ...], ...]

    @property
    def seen(self) -> dict[int, Any]:
        """What was seen by position: a value, or None where a release cannot be looked at."""
        return _seen(self.axis, self.probes, self.unusable)

    @property
    def contradictions(self) -> list[Probe]:
        """The releases whose observations disagree."""
        return [probe for probe in self.probes.values() if probe.answer.contradictory]


def search(
    question: Question,
    axis: Axis,
    look: Look,
    stored: Callable[[], Sequence[Record]],
    *,
    at_a_time: int = 2,
    resolution: int = strategy.RESOLUTION,
    exhaustive: bool = False,
    unusable: Mapping[str, str] | None = None,
    told: Callable[[Sequence[Probe], Mapping[str, str]], None] = lambda _probes, _unusable: None,
) -> Found:
    """Search until the strategy has nothing left to ask.

    `stored` reads the records of the failure and of its cells. What was observed before is used from the start; another
    release is looked at only when the strategy asks for it, and never when `unusable` has a reason not to.
    """
    before = _read(question, axis, axis.versions, stored(), reused=True)
    probes = {version: probe for version, probe in before.items() if not probe.answer.missing}
    unusable = {version: reason for version, reason in (unusable or {}).items() if version not in probes}
    unusable |= {version: probe.answer.why for version, probe in probes.items() if probe.answer.value is None}
    rounds: list[tuple[str, ...]] = []
    while True:
        positions = strategy.next_probes(
            len(axis.versions),
            _seen(axis, probes, unusable),
            at_a_time=at_a_time,
            resolution=resolution,
            exhaustive=exhaustive,
            same=question.same,
        )
        if not positions:
            return Found(question, axis, probes, unusable, tuple(rounds))
        asked = tuple(axis.versions[position] for position in positions)
        rounds.append(asked)
        troubles = look(asked)
        fresh: dict[str, str] = {}
        for version, probe in _read(question, axis, asked, stored(), reused=False).items():
            probes[version] = probe
            if probe.answer.value is None:
                fresh[version] = troubles.get(version, probe.answer.why)
        unusable |= fresh
        told([probes[version] for version in asked], fresh)


def _seen(axis: Axis, probes: Mapping[str, Probe], unusable: Mapping[str, str]) -> dict[int, Any]:
    return {
        position: None if version in unusable else probes[version].answer.value
        for position, version in enumerate(axis.versions)
        if version in unusable or version in probes
    }


def _read(
    question: Question,
    axis: Axis,
    versions: Sequence[str],
    records: Sequence[Record],
    *,
    reused: bool,
) -> dict[str, Probe]:
    """Read the answers of some versions off the records of all cells that are what the axis says."""
    observed = cells(question.failure, records)
    resolved = {record["cell"]: record["resolved"] for record in records if record["kind"] == "cell"}
    found = {}
    for version in versions:
        wanted = {**axis.fixed, axis.package: version}
        here = [cell for cell in observed if _is(cell, wanted, resolved.get(cell.id, {}))]
        found[version] = _together(version, question, here, reused)
    return found


def _together(version: str, question: Question, here: Sequence[Cell], reused: bool) -> Probe:
    """Join what several cells of one release say. Where they disagree, that is told, and decides nothing."""
    answers = [(cell, answer) for cell in here if not (answer := question.answer(cell)).missing]
    names = tuple(cell.id for cell, _ in answers)
    if not answers:
        return Probe(version, Answer(None, "did not run", missing=True), (), reused)
    first = answers[0][1]
    evidence: dict[str, tuple[str, ...]] = {}
    for _, answer in answers:
        for trial, ids in (answer.evidence or {}).items():
            evidence[trial] = (*evidence.get(trial, ()), *ids)
    told = [answer for _, answer in answers if answer.value is not None]
    torn = [answer for _, answer in answers if answer.contradictory]
    if torn:
        return Probe(version, Answer(None, torn[0].why, contradictory=True, evidence=evidence), names, reused)
    if not told:
        return Probe(version, Answer(None, first.why, evidence=evidence), names, reused)
    if any(not question.same(told[0].value, answer.value) for answer in told):
        values = ", ".join(f"{answer.value} in {cell.id}" for cell, answer in answers)
        why = f"contradictory observations: {values}"
        return Probe(version, Answer(None, why, contradictory=True, evidence=evidence), names, reused)
    return Probe(version, Answer(told[0].value, told[0].why, evidence=evidence), names, reused)


def _is(cell: Cell, wanted: Mapping[str, str], resolved: Mapping[str, str]) -> bool:
    """Tell whether a cell has the wanted versions, whatever build of them."""
    has = {**resolved, "transformers": cell.transformers, "torch": cell.torch, "device": cell.device}
    return all(_public(has.get(name)) == _public(version) for name, version in wanted.items())


def _public(version: str | None) -> str:
    try:
        return str(Version(version or "").public)
    except InvalidVersion:
        return version or ""
