"""What the pages tell: plain data that knows no markup.

Texts are as declared and as observed; words between backticks are code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

AFFECTED, GOOD, ABSENT, UNKNOWN = "affected", "not affected", "no such model", "not known"
NOT_JUDGED = "not judged"
SILENT = ("not needed", "not observable", NOT_JUDGED)
"""Verdicts that say nothing about what a claim is worth."""

WORKS, HELPS, FAILS = "works", "helps, but not enough", "does not work"
DEPENDS, OPEN = "depends on the release", "not judged"
TRUE, FALSE = "true", "false"
"""What a claim comes to over all cells: advice works or does not, a statement is true or false."""

PINNED = ("accelerate", "datasets", "numpy", "tokenizers", "peft")
"""Companions whose versions a page names beside transformers and torch."""


@dataclass(frozen=True)
class Place:
    """One cell. `label` is its release, with torch and device where those are not the usual ones."""

    id: str
    label: str
    transformers: str
    torch: str
    device: str
    python: str
    platform: str
    observed: str
    companions_until: str
    resolved: Mapping[str, str]


@dataclass(frozen=True)
class Stretch:
    """Neighbouring observed cells of which the same is true."""

    value: str
    first: str
    last: str
    cells: int

    @property
    def where(self) -> str:
        """Name the stretch."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True)
class Judged:
    """The verdict on a claim in one cell; peaks are bytes, or None where the failure is not about memory."""

    place: Place
    verdict: str
    detail: str
    peak_before: int | None
    peak_after: int | None


@dataclass(frozen=True)
class ClaimFacts:
    """A claim with what it is worth, cell by cell. `standing` is what that comes to."""

    id: str
    anchor: str
    kind: str
    says: str
    source: str
    change: str
    code: str
    standing: str
    judged: tuple[Judged, ...]

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The verdicts as stretches of cells."""
        return stretches((judged.place.label, judged.verdict) for judged in self.judged)

    @property
    def by_place(self) -> dict[str, str]:
        """The verdicts by the label of the cell."""
        return {judged.place.label: judged.verdict for judged in self.judged}

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """What was seen, where the claim was really put to the test: (where, what), without repetition."""
        told = [(j.place.label, j.detail) for j in self.judged if j.verdict not in ("not needed", "not observable")]
        return tuple((found.where, found.value) for found in stretches(told))


@dataclass(frozen=True)
class SymptomFacts:
    """A symptom with the text that was really seen, and where. `seen` is empty when it never was."""

    outcome: str
    says: str
    error: str
    declared: bool
    seen: str
    observations: int

    @property
    def sentence(self) -> str:
        """Say how often it was seen, and where."""
        if not self.observations:
            return "never seen so far"
        return f"seen {counted(self.observations, 'time')}, in {self.seen}"


@dataclass(frozen=True)
class Turn:
    """One change to the reported run and what the runs with it did, in the affected cells."""

    change: str
    outcome: str
    makes_a_difference: bool
    cells: int


@dataclass(frozen=True)
class TriggerFacts:
    """The trigger as a sentence, and its evidence: how many observed outcomes it predicts."""

    says: str
    agrees: int
    differs: tuple[str, ...]
    silent: int
    turns: tuple[Turn, ...]
    mechanisms: tuple[Stretch, ...]


@dataclass(frozen=True)
class Frontier:
    """Between which of the observed releases the failure appears and disappears; empty where there is no such end."""

    first_affected: str
    last_affected: str
    last_good_before: str
    first_good_after: str
    stretches: tuple[Stretch, ...]

    @property
    def sentence(self) -> str:
        """Say it in one sentence."""
        if not self.stretches:
            return "Nothing was observed yet."
        if not self.first_affected:
            return "No observed release has it."
        seen = self.first_affected
        if self.last_affected != seen:
            seen += f" to {self.last_affected}"
        if not (self.last_good_before or self.first_good_after):
            return f"Seen in transformers {seen}; nothing older or newer was observed."
        before = f"not yet in {self.last_good_before}" if self.last_good_before else "nothing older was observed"
        after = f"no longer in {self.first_good_after}" if self.first_good_after else "nothing newer was observed"
        return f"Seen in transformers {seen}; {before}, {after}."


@dataclass(frozen=True)
class Basis:
    """What a page rests on."""

    observations: int
    releases: int
    torch: tuple[str, ...]
    devices: tuple[str, ...]
    pythons: tuple[str, ...]
    first: str
    last: str

    @property
    def sentence(self) -> str:
        """Say it in one sentence."""
        if not self.observations:
            return "Nothing was observed yet."
        when = f"on {self.first}" if self.first == self.last else f"from {self.first} to {self.last}"
        return (
            f"{self.observations} observations in {counted(self.releases, 'release')} of transformers, with torch "
            f"{', '.join(self.torch)}, Python {', '.join(self.pythons)}, on {', '.join(self.devices)}, {when}."
        )


@dataclass(frozen=True)
class Status:
    """Whether one failure is in one cell, and the outcome or the reason that says so."""

    place: Place
    status: str
    outcome: str


@dataclass(frozen=True)
class Peak:
    """The most memory that a run took, in bytes, and what became of the run."""

    run: str
    anchor: str
    bytes: int
    says: str


TOLD_FROM = 4096
"""Smaller differences between peaks, in bytes, are those of single tensors: `repro budgets compare` has them."""


@dataclass(frozen=True)
class PeakDifference:
    """By how many bytes some trials' peaks differ in a stretch of releases from the newest one's.

    `held_by` are the functions that hold more or less at the peak; empty where no trial has a complete account.
    """

    where: str
    bytes: int
    trials: int
    held_by: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class MemoryFacts:
    """Peaks side by side, in the newest cell that has them. `capacity` is in bytes, None where there was no limit.

    `differences` are those of older releases, from `TOLD_FROM` bytes; `same` the releases whose peaks are all the
    newest one's, to the byte.
    """

    where: str
    how: str
    capacity: int | None
    peaks: tuple[Peak, ...]
    differences: tuple[PeakDifference, ...] = ()
    same: tuple[str, ...] = ()

    @property
    def largest(self) -> int:
        """The bytes that a picture has to have room for."""
        return max([self.capacity or 0, *(peak.bytes for peak in self.peaks)])


@dataclass(frozen=True)
class FailureFacts:
    """Everything that the page of a failure tells."""

    id: str
    title: str
    summary: str
    retired: str
    reported: tuple[str, ...]
    scope: str
    symptoms: tuple[SymptomFacts, ...]
    trigger: TriggerFacts
    statuses: tuple[Status, ...]
    frontier: Frontier
    claims: tuple[ClaimFacts, ...]
    sources: tuple[tuple[str, str, str], ...]
    commands: tuple[str, ...]
    memory: MemoryFacts | None
    basis: Basis

    @property
    def cures(self) -> tuple[ClaimFacts, ...]:
        """The advice that worked wherever there was something to cure."""
        return tuple(claim for claim in self.claims if claim.standing == WORKS)

    @property
    def other_advice(self) -> tuple[ClaimFacts, ...]:
        """The advice that was put to the test and did not work everywhere."""
        return tuple(c for c in self.claims if c.kind == "advice" and c.standing not in (WORKS, OPEN))

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The different verdicts that its claims have."""
        return tuple(sorted({judged.verdict for claim in self.claims for judged in claim.judged}))

    def status_in(self, release: str) -> str:
        """Tell whether a release has it: it has when any of its cells has."""
        found = {status.status for status in self.statuses if status.place.transformers == release}
        return next((status for status in (AFFECTED, GOOD, ABSENT) if status in found), UNKNOWN if found else "")


@dataclass(frozen=True)
class ReleaseFacts:
    """Everything that the page of a release tells: its cells, and the failures there."""

    release: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Reference:
    """All pages."""

    failures: tuple[FailureFacts, ...]
    releases: tuple[ReleaseFacts, ...]
    basis: Basis


def stretches(parts: Iterable[tuple[str, str]]) -> tuple[Stretch, ...]:
    """Join neighbours of the same value; parts are (label, value)."""
    found: list[Stretch] = []
    for label, value in parts:
        if found and found[-1].value == value:
            found[-1] = Stretch(value, found[-1].first, label, found[-1].cells + 1)
        else:
            found.append(Stretch(value, label, label, 1))
    return tuple(found)


def settings(levels: Mapping[str, Any]) -> tuple[str, ...]:
    """Return levels as text, one by one."""
    return tuple(f"{factor}={level}" for factor, level in levels.items())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it has to be."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
