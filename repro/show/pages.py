"""The facts of the pages, from the catalogue and stored results alone: one place for Markdown and HTML.

Nothing here knows a markup. Texts are as declared and as observed; words between backticks are code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from repro.judge.observed import Cell, cells
from repro.judge.verdicts import verdicts
from repro.store.records import Record
from repro.vocabulary import RAISES_OTHER, REFUSED, TRAINS, Claim, Configuration, Failure, Trial

AFFECTED, GOOD, UNKNOWN = "affected", "not affected", "not known"
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
        return f"seen {_counted(self.observations, 'time')}, in {self.seen}"


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
            f"{self.observations} observations in {_counted(self.releases, 'release')} of transformers, with torch "
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


@dataclass(frozen=True)
class MemoryFacts:
    """Peaks side by side, in the newest cell that has them. `capacity` is in bytes, None where there was no limit."""

    where: str
    how: str
    capacity: int | None
    peaks: tuple[Peak, ...]

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
        return next((status for status in (AFFECTED, GOOD) if status in found), UNKNOWN if found else "")


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


def reference(failures: Iterable[Failure], records: Sequence[Record]) -> Reference:
    """Gather the facts of all pages. Failures without observations have pages too, and say so."""
    catalogue = list(failures)
    known = {failure.id for failure in catalogue}
    observed = [record for record in records if record["kind"] == "observation" and record["failure"] in known]
    places = _places(records, observed)
    by_release: dict[str, list[Place]] = defaultdict(list)
    for place in places.values():
        by_release[place.transformers].append(place)
    return Reference(
        tuple(_failure(failure, records, places) for failure in catalogue),
        tuple(ReleaseFacts(release, tuple(its)) for release, its in by_release.items()),
        _basis(observed),
    )


def stretches(parts: Iterable[tuple[str, str]]) -> tuple[Stretch, ...]:
    """Join neighbours of the same value; parts are (label, value)."""
    found: list[Stretch] = []
    for label, value in parts:
        if found and found[-1].value == value:
            found[-1] = Stretch(value, found[-1].first, label, found[-1].cells + 1)
        else:
            found.append(Stretch(value, label, label, 1))
    return tuple(found)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def _order(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion:
        return Version("0")


def _places(records: Sequence[Record], observed: Sequence[Record]) -> dict[str, Place]:
    """Return the cells that hold observations, oldest release first."""
    described = {record["cell"]: record for record in records if record["kind"] == "cell"}
    dates: dict[str, str] = {}
    sample: dict[str, Record] = {}
    for record in observed:
        sample.setdefault(record["cell"], record)
        dates[record["cell"]] = max(dates.get(record["cell"], ""), record["time"][:10])
    ordered = sorted(sample.values(), key=lambda r: (_order(r["transformers"]), _order(r["torch"]), r["cell"]))
    usual_torch = _usual(_public(record["torch"]) for record in ordered)
    usual_device = _usual(record["device"] for record in ordered)
    places = {}
    for record in ordered:
        cell, about = record["cell"], {**record, **described.get(record["cell"], {})}
        torch, device = _public(record["torch"]), record["device"]
        besides = [f"torch {torch}"] * (torch != usual_torch) + [device] * (device != usual_device)
        label = record["transformers"] + (f" ({', '.join(besides)})" if besides else "")
        places[cell] = Place(
            cell,
            label,
            record["transformers"],
            torch,
            device,
            str(about.get("python", "")),
            str(about.get("platform", "")),
            dates[cell],
            str(about.get("exclude_newer") or ""),
            about.get("resolved", {}),
        )
    return places


def _usual(values: Iterable[str]) -> str:
    return next((value for value, _ in Counter(values).most_common(1)), "")


def _basis(observed: Sequence[Record]) -> Basis:
    def all_of(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(values), key=lambda value: (_order(value), value)))

    days = sorted(record["time"][:10] for record in observed) or [""]
    return Basis(
        len(observed),
        len({record["transformers"] for record in observed}),
        all_of(_public(record["torch"]) for record in observed),
        all_of(record["device"] for record in observed),
        all_of(str(record.get("python", "")) for record in observed),
        days[0],
        days[-1],
    )


def _failure(failure: Failure, records: Sequence[Record], places: Mapping[str, Place]) -> FailureFacts:
    mine = [record for record in records if record.get("failure") == failure.id]
    observed = cells(failure, mine)
    statuses = tuple(_status(failure, cell, places[cell.id]) for cell in observed)
    frontier = _frontier(statuses)
    claims = _claims(failure, mine, places)
    return FailureFacts(
        id=failure.id,
        title=failure.title,
        summary=failure.summary,
        retired=failure.retired,
        reported=settings(failure.deviations(failure.reported)),
        scope=failure.reported_scope,
        symptoms=_symptoms(failure, observed, places),
        trigger=_trigger(failure, observed, statuses, places),
        statuses=statuses,
        frontier=frontier,
        claims=claims,
        sources=tuple((source.id, source.says, source.url) for source in failure.sources),
        commands=_commands(failure, frontier),
        memory=_memory(failure, observed, claims, places),
        basis=_basis([record for record in mine if record["kind"] == "observation"]),
    )


def settings(levels: Mapping[str, Any]) -> tuple[str, ...]:
    """Return levels as text, one by one."""
    return tuple(f"{factor}={level}" for factor, level in levels.items())


def _status(failure: Failure, cell: Cell, place: Place) -> Status:
    """Tell whether a cell has the failure: the reported run fails while the plain run trains."""
    plain, reported = cell.outcome_of(failure, failure.configuration()), cell.outcome_of(failure, failure.reported)
    if plain.name != TRAINS:
        return Status(place, UNKNOWN, f"the plain run: {plain.name or plain.why}")
    if reported.name in (None, RAISES_OTHER, REFUSED):
        return Status(place, UNKNOWN, f"the reported run: {reported.name or reported.why}")
    return Status(place, GOOD if reported.name == TRAINS else AFFECTED, str(reported.name))


def _frontier(statuses: Sequence[Status]) -> Frontier:
    """Find the ends among the releases seen; a release counts as affected when any of its cells is."""
    by_release: dict[str, set[str]] = defaultdict(set)
    for status in statuses:
        if status.status != UNKNOWN:
            by_release[status.place.transformers].add(status.status)
    releases = [(release, AFFECTED in found) for release, found in by_release.items()]
    positions = [position for position, (_, affected) in enumerate(releases) if affected]
    joined = stretches((status.place.label, status.outcome) for status in statuses)
    if not positions:
        return Frontier("", "", "", "", joined)
    first, last = positions[0], positions[-1]
    before = releases[first - 1][0] if first else ""
    after = releases[last + 1][0] if last + 1 < len(releases) else ""
    return Frontier(releases[first][0], releases[last][0], before, after, joined)


def _symptoms(failure: Failure, observed: Sequence[Cell], places: Mapping[str, Place]) -> tuple[SymptomFacts, ...]:
    seen: dict[str, list[tuple[str, Record]]] = defaultdict(list)
    for cell in observed:
        for records in cell.observations.values():
            for record in records:
                seen[failure.outcome(record)].append((cell.id, record))
    found = []
    for symptom in failure.symptoms:
        its = seen.get(symptom.outcome, [])
        error = its[-1][1].get("exception") if its else None
        text = f"{error['type']}: {error['message']}" if error else ""
        declared = f"{symptom.exception}: {symptom.message}" if symptom.exception else ""
        where = list(dict.fromkeys(places[cell].label for cell, _ in its))
        found.append(
            SymptomFacts(
                symptom.outcome, symptom.says, text or declared, not text, _listed(where, observed, places), len(its)
            )
        )
    return tuple(found)


def _listed(labels: Sequence[str], observed: Sequence[Cell], places: Mapping[str, Place]) -> str:
    """Name cells as stretches of all observed ones."""
    marked = stretches((places[cell.id].label, str(places[cell.id].label in labels)) for cell in observed)
    return ", ".join(stretch.where for stretch in marked if stretch.value == "True")


def _trigger(
    failure: Failure, observed: Sequence[Cell], statuses: Sequence[Status], places: Mapping[str, Place]
) -> TriggerFacts:
    agrees, silent, differs = 0, 0, []
    for cell in observed:
        for name, records in cell.observations.items():
            scope, configuration = records[-1]["scope"], Configuration(records[-1]["configuration"])
            outcome = cell.outcome(failure, Trial(failure.id, scope, configuration, name))
            if outcome.name is None:
                continue
            expected = None
            if cell.mechanism is not None and set(configuration) == {factor.name for factor in failure.factors}:
                expected = failure.trigger.predict(configuration, scope, cell.mechanism)
            if expected is None:
                silent += 1
            elif expected == outcome.name:
                agrees += 1
            else:
                what = ", ".join(settings(failure.deviations(configuration))) or "the plain run"
                differs.append(f"{places[cell.id].label}: {what} ({scope}): {outcome.name}, not {expected}")
    affected = {status.place.id: status.outcome for status in statuses if status.status == AFFECTED}
    mechanisms = stretches((places[c.id].label, _mechanism(c.mechanism)) for c in observed if c.mechanism is not None)
    turns = _turns(failure, [cell for cell in observed if cell.id in affected], affected)
    return TriggerFacts(failure.trigger.says, agrees, tuple(differs), silent, turns, mechanisms)


def _mechanism(mechanism: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {_value(value)}" for name, value in sorted(mechanism.items()))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(item)}" for name, item in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value is None else str(value)


def _turns(failure: Failure, observed: Sequence[Cell], reported: Mapping[str, str]) -> tuple[Turn, ...]:
    """Return each single change to the reported run that was observed in the affected cells, and what it made of it."""
    found = []
    for factor in failure.factors_at(failure.reported_scope):
        for level in factor.levels:
            changed = failure.reported.but(**{factor.name: level})
            if changed == failure.reported:
                continue
            outcomes = {cell.id: cell.outcome_of(failure, changed).name for cell in observed}
            told = {cell: name for cell, name in outcomes.items() if name is not None}
            if told:
                names = ", ".join(dict.fromkeys(told.values()))
                difference = any(name != reported[cell] for cell, name in told.items())
                found.append(Turn(f"{factor.name}={level}", names, difference, len(told)))
    return tuple(sorted(found, key=lambda turn: not turn.makes_a_difference))


def _claims(failure: Failure, records: Sequence[Record], places: Mapping[str, Place]) -> tuple[ClaimFacts, ...]:
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
        claim.id if as_written else f"{claim.id} (today's spelling)",
        f"claim-{claim.id}" + ("" if as_written else "-today"),
        claim.kind,
        claim.says,
        source,
        ", ".join(text),
        claim.code,
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


RAN = ("resolves", "no effect", "partly", "moves it")
"""Verdicts on advice that was followed to the end of a run, so that its peak says something."""


def _memory(
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
        return MemoryFacts(places[cell.id].label, source, reported.facts.get("capacity"), tuple(peaks))
    return None


def _commands(failure: Failure, frontier: Frontier) -> tuple[str, ...]:
    shown = [frontier.last_good_before, frontier.last_affected, frontier.first_good_after]
    releases = ",".join(dict.fromkeys(release for release in shown if release)) or "all"
    matrix = f"repro matrix --transformers {releases} --failures {failure.id} --trial-set reference"
    script = [f"repro script {failure.id} > reproduce.py && uv run reproduce.py"] if failure.script else []
    return (*script, matrix, f"repro verdicts {failure.id}")
