"""How well each known failure explains a text: evidence for and against, added up; never a guess.

An exception and a message alone are half of a proof, for other programs raise them too. The other half are a symptom's
clues. A failure is only named from `KNOWN` on; below it is at most the nearest, with what speaks against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.triage.tracebacks import Frame, Raised, Report
from repro.vocabulary import Clue, Failure, Symptom

KNOWN = 0.7
"""Confidence from which on a failure is named."""

TYPE_AND_MESSAGE = 0.5
"""What an exception of the symptom's type with its message is worth."""

MESSAGE_ONLY = 0.4
"""What the message is worth where no exception bears it: cut off, quoted, or of another type."""

TYPE_AND_CLUES = 0.2
"""What the type is worth with a message in other words, a translated one for instance; clues have to do the rest."""

_BUILTIN_PARENTS = {"OutOfMemoryError": ("RuntimeError",)}
"""Bases of exceptions whose name alone is printed."""


_LEFT_OUT = r"^ *(?:\d{1,4} frames|(?:\[?\.\.\.|…).{0,60})$"
"""A line that stands for frames which a notebook hid or a person left out."""


@dataclass(frozen=True)
class Evidence:
    """One thing looked for, whether the text shows it, and what that adds to the confidence."""

    says: str
    found: bool
    weight: float


@dataclass(frozen=True)
class Match:
    """A failure held against a text. `confidence` is between 0 and 1; `raised` is the exception that it is about."""

    failure: Failure
    symptom: Symptom
    confidence: float
    raised: Raised | None
    evidence: tuple[Evidence, ...]

    @property
    def known(self) -> bool:
        """Tell whether the evidence suffices to name the failure."""
        return self.confidence >= KNOWN

    @property
    def difference(self) -> str:
        """Say what is missing or speaks against this failure, as a clause."""
        against = [item.says for item in self.evidence if item.found and item.weight < 0]
        missing = [item.says for item in self.evidence if not item.found]
        parts = [f"the text shows that {says}" for says in against]
        parts += [f"it does not show that {says}" for says in missing]
        return "; ".join(parts)


class _Text:
    """The lines of a report as one text, each expression searched for only once."""

    def __init__(self, report: Report) -> None:
        self.raised = report.raised
        self._joined = "\n".join(report.lines)
        self._searched: dict[str, bool] = {}

    def shows(self, expression: str) -> bool:
        """Tell whether a line matches an expression."""
        if expression not in self._searched:
            self._searched[expression] = re.search(expression, self._joined, re.MULTILINE) is not None
        return self._searched[expression]


def rank(report: Report, failures: Iterable[Failure]) -> list[Match]:
    """Hold every failure against a text, the likeliest first; those for which nothing speaks are left out."""
    text = _Text(report)
    matches = [match for failure in failures if (match := _best(text, failure))]
    return sorted(matches, key=lambda match: (-match.confidence, match.failure.id))


def nearest(report: Report, failures: Iterable[Failure]) -> Match | None:
    """Return the failure that has most in common with the last exception, for a text that none of them explains.

    Its confidence is 0, and its evidence is what it lacks. None where the text has no exception.
    """
    if not report.raised:
        return None
    raised = report.raised[-1]
    words = _words(raised.message)
    best: tuple[float, Match] | None = None
    for failure in failures:
        for symptom in failure.symptoms:
            if not symptom.message:
                continue
            same_type = raised.name == symptom.exception.rpartition(".")[2]
            alike = len(words & _words(symptom.message + " " + symptom.says)) / (1 + len(words)) + same_type
            if best is None or alike > best[0]:
                evidence = [Evidence("the message is that of this failure", False, 0.0)]
                if not same_type:
                    evidence.insert(
                        0, Evidence(f"{symptom.exception} was raised (it is {raised.type or 'unknown'})", False, 0.0)
                    )
                best = (alike, Match(failure, symptom, 0.0, raised, tuple(evidence)))
    return best[1] if best else None


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,30}", text[:2000].lower()))


def _best(report: _Text, failure: Failure) -> Match | None:
    matches: list[Match] = []
    for symptom in failure.symptoms:
        if not symptom.message and not symptom.clues:
            continue  # A symptom that prints nothing cannot be found in a text.
        found = (_match(report, failure, symptom, raised) for raised in (*report.raised, None))
        matches.extend(match for match in found if match)
    return max(matches, key=lambda match: (match.confidence, match.raised is not None), default=None)


def _match(report: _Text, failure: Failure, symptom: Symptom, raised: Raised | None) -> Match | None:
    basis = _basis(report, symptom, raised)
    if basis is None:
        return None
    frames = raised.frames if raised else ()
    evidence = [basis, *(_weigh(clue, frames, report) for clue in symptom.clues)]
    confidence = max(0.0, min(0.99, sum(item.weight for item in evidence)))
    if confidence <= 0:
        return None
    return Match(failure, symptom, round(confidence, 2), raised, tuple(evidence))


def _basis(report: _Text, symptom: Symptom, raised: Raised | None) -> Evidence | None:
    name = symptom.exception.rpartition(".")[2]
    if raised is None:
        if symptom.message and report.shows(symptom.message):
            return Evidence("it has the message of this failure", True, MESSAGE_ONLY)
        return None
    typed = bool(name) and name in (raised.name, *_BUILTIN_PARENTS.get(raised.name, ()))
    if symptom.message and says(raised.message, symptom.message):
        if typed:
            return Evidence(f"{raised.type} was raised with the message of this failure", True, TYPE_AND_MESSAGE)
        return Evidence("it has the message of this failure", True, MESSAGE_ONLY)
    if typed and raised.frames and any(clue.lacking for clue in symptom.clues):
        return Evidence("the message is that of this failure", False, TYPE_AND_CLUES)
    return None


def says(message: str, expression: str) -> bool:
    """Tell whether a message matches, however it was wrapped: at words, or by a terminal in the middle of them."""
    lines = [line.strip() for line in message.split("\n")]
    return any(re.search(expression, text) for text in (message, " ".join(lines), "".join(lines)))


def _weigh(clue: Clue, frames: Sequence[Frame], text: _Text) -> Evidence:
    found = (not clue.frames or passes(frames, clue.frames)) and (not clue.text or text.shows(clue.text))
    if found:
        return Evidence(clue.says, True, clue.weight)
    # Only a traceback that is there in full can speak against a failure by what it lacks.
    complete = bool(frames) and not text.shows(_LEFT_OUT)
    return Evidence(clue.says, False, clue.lacking if complete else 0.0)


def passes(frames: Sequence[Frame], wanted: Sequence[str]) -> bool:
    """Tell whether a traceback passes these places in this order, others between them or not."""
    rest = iter(frames)
    return all(any(_is_at(frame, place) for frame in rest) for place in wanted)


def _is_at(frame: Frame, place: str) -> bool:
    path, _, function = place.rpartition(":")
    return frame.path.endswith(path) and function in ("", frame.function)
