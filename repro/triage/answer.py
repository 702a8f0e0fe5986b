"""The answer to a pasted text: which failure, how sure, whether these versions have it, and what cures it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repro.triage import history, out_of_memory, ranking, settings, tracebacks, versions
from repro.triage.advice import Advice, Advised, advise
from repro.triage.history import Affected
from repro.triage.out_of_memory import OutOfMemory
from repro.triage.ranking import Match
from repro.triage.tracebacks import Raised
from repro.triage.versions import Versions
from repro.vocabulary import Failure


@dataclass(frozen=True)
class Answer:
    """All that triage has to say. `match` is the failure it is, `nearest` the one that it is not known to be.

    `rivals` are the failures for which the evidence is as good as for `nearest`, that one among them, where it is for
    more than one.
    """

    match: Match | None
    nearest: Match | None
    rivals: tuple[Match, ...]
    raised: Raised | None
    versions: Versions
    settings: dict[str, tuple[str, ...]]
    out_of_memory: OutOfMemory | None
    affected: Affected
    cures: tuple[Advice, ...] = ()
    refuted: tuple[Advice, ...] = ()
    depends: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()
    prove: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the answer for programs."""
        match, memory = self.match, self.out_of_memory
        return {
            "failure": match.failure.id if match else None,
            "title": match.failure.title if match else None,
            "outcome": match.symptom.outcome if match else None,
            "confidence": match.confidence if match else (self.nearest.confidence if self.nearest else 0.0),
            "affected": self.affected.answer if match else None,
            "affected_because": self.affected.because if match else None,
            "versions": self.versions.found,
            "versions_from": self.versions.source,
            "cures": [advice.as_json() for advice in self.cures],
            "refuted": [advice.as_json() for advice in self.refuted],
            "depends": [advice.as_json() for advice in self.depends],
            "nearest": _nearest_json(self.nearest),
            "rivals": [_nearest_json(rival) for rival in self.rivals],
            "evidence": [{"says": e.says, "found": e.found, "weight": e.weight} for e in match.evidence]
            if match
            else [],
            "exception": {"type": self.raised.type, "message": self.raised.message[:500]} if self.raised else None,
            "settings": {name: list(values) for name, values in self.settings.items()},
            "out_of_memory": None if memory is None else vars(memory),
            "prove": self.prove or None,
            "notes": list(self.notes),
        }


def triage(
    text: str,
    failures: Iterable[Failure],
    known: Versions | None = None,
    places: Sequence[Path] = (),
) -> Answer:
    """Answer a pasted text.

    `known` are versions from an environment or a list of packages; what they say goes before what the text says.
    `places` are directories or files of results to answer from. Raises ResultsError when one cannot be read.
    """
    failures = list(failures)
    report = tracebacks.parse(text)
    stated = versions.find(report.lines)
    theirs = known.over(stated) if known else stated
    matches = ranking.rank(report, failures)
    match = matches[0] if matches and matches[0].known else None
    equals = [other for other in matches if not match and other.confidence == matches[0].confidence]
    answer = Answer(
        match=match,
        nearest=None if match else (matches[0] if matches else ranking.nearest(report, failures)),
        rivals=tuple(equals) if len(equals) > 1 else (),
        raised=(match.raised if match else None) or (report.raised[-1] if report.raised else None),
        versions=theirs,
        settings=settings.find(_without_messages(report)),
        out_of_memory=out_of_memory.find(report),
        affected=Affected(None, ""),
        notes=(*theirs.notes, *_contradictions(known, stated)),
    )
    return _with_history(answer, match, places) if match else answer


def _with_history(answer: Answer, match: Match, places: Sequence[Path]) -> Answer:
    """Complete an answer by what was observed of the failure: where it is, and what each piece of advice is worth."""
    failure, outcome = match.failure, match.symptom.outcome
    records, damage = history.records(failure, places)
    where = history.seen(failure, records, outcome)
    transformers = answer.versions.found.get("transformers")
    state = history.affected(where, transformers, answer.versions.found.get("torch"))
    notes = [*answer.notes, *damage]
    advice = Advised()
    if outcome == failure.symptoms[0].outcome:
        advice = advise(failure, records, state.near)
    else:
        notes.append(f"advice was judged on another symptom of this failure ({failure.symptoms[0].outcome})")
    affected = [cell.transformers for cell in state.near if cell.affected]
    release = transformers or (affected[-1] if affected else "")
    prove = f"repro matrix --failures {failure.id} --transformers {release or 'latest'} --trial-set reference"
    return replace(
        answer,
        affected=state,
        cures=advice.cures,
        refuted=advice.refuted,
        depends=advice.depends,
        prove=prove,
        notes=tuple(notes),
    )


def _without_messages(report: tracebacks.Report) -> Sequence[str]:
    """Return the lines that are no message of an exception: what a message recommends was not set."""
    told = {line for raised in report.raised for line in raised.message.split("\n")}
    ends = tuple(line for line in told if len(line) > 20)
    return [line for line in report.lines if line.strip() not in told and not (ends and line.endswith(ends))]


def _contradictions(known: Versions | None, stated: Versions) -> list[str]:
    if known is None:
        return []
    return [
        f"the text names {package} {stated.found[package]}, {known.source[package]} has {version}: the latter is used"
        for package, version in known.found.items()
        if package in stated.found and package != "python" and stated.found[package] != version
    ]


def _nearest_json(match: Match | None) -> dict[str, Any] | None:
    if match is None:
        return None
    return {"failure": match.failure.id, "confidence": match.confidence, "difference": match.difference}
