"""Gathers the facts of the pages from the catalogue and stored results alone: one place for Markdown and HTML."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from repro.judge.observed import Cell, cells
from repro.show.claims import claim_facts, memory_facts
from repro.show.facts import (
    ABSENT,
    AFFECTED,
    GOOD,
    UNKNOWN,
    Basis,
    FailureFacts,
    Frontier,
    Place,
    Reference,
    ReleaseFacts,
    Status,
    SymptomFacts,
    TriggerFacts,
    Turn,
    settings,
    stretches,
)
from repro.store.records import Record
from repro.vocabulary import RAISES_OTHER, REFUSED, TRAINS, Failure


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
        _basis(observed, places),
    )


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


def _basis(observed: Sequence[Record], places: Mapping[str, Place]) -> Basis:
    def all_of(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(values), key=lambda value: (_order(value), value)))

    days = sorted(record["time"][:10] for record in observed) or [""]
    return Basis(
        len(observed),
        len({record["transformers"] for record in observed}),
        all_of(_public(record["torch"]) for record in observed),
        all_of(record["device"] for record in observed),
        all_of(places[record["cell"]].python for record in observed),
        days[0],
        days[-1],
    )


def _failure(failure: Failure, records: Sequence[Record], places: Mapping[str, Place]) -> FailureFacts:
    mine = [record for record in records if record.get("failure") == failure.id]
    observed = cells(failure, mine)
    statuses = tuple(_status(failure, cell, places[cell.id]) for cell in observed)
    frontier = _frontier(statuses)
    claims = claim_facts(failure, mine, places)
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
        memory=memory_facts(failure, observed, claims, places),
        basis=_basis([record for record in mine if record["kind"] == "observation"], places),
    )


def _status(failure: Failure, cell: Cell, place: Place) -> Status:
    """Tell whether a cell has the failure: the reported run fails while the plain run trains."""
    if cell.lacks_the_model:
        return Status(place, ABSENT, ABSENT)
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
            scope, configuration = records[-1]["scope"], failure.stored(records[-1]["configuration"])
            outcome = cell.outcome(failure, name)
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


def _commands(failure: Failure, frontier: Frontier) -> tuple[str, ...]:
    shown = [frontier.last_good_before, frontier.last_affected, frontier.first_good_after]
    releases = ",".join(dict.fromkeys(release for release in shown if release)) or "all"
    matrix = f"repro matrix --transformers {releases} --failures {failure.id} --trial-set reference"
    script = [f"repro script {failure.id} > reproduce.py && uv run reproduce.py"] if failure.script else []
    return (*script, matrix, f"repro verdicts {failure.id}")
