"""The words of the project, as types: what a failure is made of and what running it yields.

Standard library only: these types are used at the desk and inside every cell. Nothing here knows how to run, store or
judge anything.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Level = str | int
"""One value of a factor. No booleans: `1` and `True` are equal in Python, and must never be here."""

Facts = Mapping[str, Any]
"""What a trial yields before it is stored: JSON values only, named in `repro.store.records`."""

Mechanism = Mapping[str, Any]
"""What a probe saw of a release's inner workings, in place of a version number (JSON values only)."""

Scope = Literal["model", "trainer"]
"""`model`: forward and backward of the bare model. `trainer`: a whole `Trainer.train()`."""

SCOPES: tuple[Scope, ...] = ("model", "trainer")

# Outcomes that any failure can have. A failure's symptoms add their own.
TRAINS = "trains"
GRADIENTS_MISSING = "gradients missing"
GRADIENTS_WRONG = "gradients wrong"
STANDS_STILL = "parameters do not move"
LOSS_NOT_FINITE = "loss is not finite"
REFUSED = "refuses an argument"
RAISES_OTHER = "raises another error"
# Outcomes of a trial that was not seen to its end. They are never a verdict.
UNFINISHED = ("crashed", "timed out", "over its memory limit", "could not run", "skipped")


class Configuration(Mapping[str, Level]):
    """One level for each factor of a failure; immutable, hashable, and equal by its levels."""

    __slots__ = ("_hash", "_levels")

    def __init__(self, levels: Mapping[str, Level]) -> None:
        self._levels = dict(sorted(levels.items()))
        self._hash = hash(tuple(self._levels.items()))

    def __getitem__(self, factor: str) -> Level:
        return self._levels[factor]

    def __iter__(self) -> Iterator[str]:
        return iter(self._levels)

    def __len__(self) -> int:
        return len(self._levels)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Configuration):
            return self._levels == other._levels
        return NotImplemented

    def __repr__(self) -> str:
        return f"Configuration({self._levels!r})"

    def but(self, **levels: Level) -> Configuration:
        """Return this configuration with some levels changed or added."""
        return Configuration({**self._levels, **levels})


@dataclass(frozen=True)
class Factor:
    """Something that may matter. The first level is the default: the plain run that nobody complains about.

    `model_levels` are the levels that exist for the bare model, where those are fewer; `cuda_levels` are those that
    only a CUDA device can run.
    """

    name: str
    levels: tuple[Level, ...]
    says: str
    scopes: tuple[Scope, ...] = SCOPES
    model_levels: tuple[Level, ...] = ()
    cuda_levels: tuple[Level, ...] = ()

    @property
    def default(self) -> Level:
        """The level of the plain run."""
        return self.levels[0]

    def levels_at(self, scope: Scope, device: str = "cpu") -> tuple[Level, ...]:
        """Return the levels that can be run at a scope on a device."""
        levels = self.model_levels if scope == "model" and self.model_levels else self.levels
        return levels if device == "cuda" else tuple(level for level in levels if level not in self.cuda_levels)


@dataclass(frozen=True)
class Constraint:
    """Why some combinations of levels are not configurations of their own, and are therefore never run."""

    says: str
    allows: Callable[[Configuration], bool]


@dataclass(frozen=True)
class Clue:
    """What else a pasted text shows where a symptom was printed: evidence for triage, beside exception and message.

    It is found where the traceback passes the `frames` in this order, from the outermost (each written as
    `end of the file's path:function`, either of them empty for any), and where a line matches the expression `text`;
    what is empty asks for nothing. `weight`, between -1 and 1, is added to the confidence where it is found, and
    `lacking` where a traceback that is there in full lacks it. `says` completes the sentence "the text shows that ...".
    """

    says: str
    weight: float
    frames: tuple[str, ...] = ()
    text: str = ""
    lacking: float = 0.0


@dataclass(frozen=True)
class Symptom:
    """How a failure shows itself: an exception of a type and with a message, or a fact of a run that did not raise.

    An exception may have `shows` besides, where it depends on the other facts (where it was raised) which it is.
    """

    outcome: str
    says: str
    exception: str = ""
    message: str = ""
    shows: Callable[[Facts], bool] | None = None
    clues: tuple[Clue, ...] = ()

    def seen_in(self, facts: Facts) -> bool:
        """Tell whether these facts show the symptom."""
        raised = facts.get("exception")
        if self.exception:
            if not raised or not re.search(self.message, raised["message"]):
                return False
            if self.exception not in (raised["type"], *raised.get("bases", ())):
                return False
            return self.shows is None or self.shows(facts)
        return self.shows is not None and raised is None and self.shows(facts)


@dataclass(frozen=True)
class Trigger:
    """The declared hypothesis: which outcome a configuration has, given what a probe saw of the release.

    `predict` returns None where the hypothesis says nothing; such a configuration is observed but not checked.
    """

    says: str
    predict: Callable[[Configuration, Scope, Mechanism], str | None]


@dataclass(frozen=True)
class Source:
    """Where a report or a piece of advice was seen."""

    id: str
    says: str
    url: str = ""


@dataclass(frozen=True)
class Claim:
    """A piece of advice, or a stated cause or fact, as data.

    Advice is a change: to the reported configuration (`change`), or to the cell (`pin`, a requirement per package,
    with `latest` for an upgrade). `today` is the same change in the spelling of newer releases, where an argument was
    renamed, and `says_today` that advice in its words. A statement has `holds` instead, a pure function over the facts
    of `looks_at` (configurations; the reported one when empty), in that order. It returns None where those facts cannot
    tell. `about_failure` is False for a statement that can be checked where the failure does not exist, too.
    """

    id: str
    says: str
    source: str
    kind: Literal["advice", "statement"] = "advice"
    change: Mapping[str, Level] = field(default_factory=dict)
    today: Mapping[str, Level] | None = None
    says_today: str = ""
    pin: Mapping[str, str] = field(default_factory=dict)
    base: Configuration | None = None
    looks_at: tuple[Configuration, ...] = ()
    holds: Callable[[Sequence[Facts]], bool | None] | None = None
    about_failure: bool = True
    needs_device: Literal["", "cuda"] = ""
    why_device: str = ""
    code: str = ""


@dataclass(frozen=True)
class Trial:
    """One configuration of one failure at one scope, to be run once in a cell."""

    failure: str
    scope: Scope
    configuration: Configuration
    id: str


@dataclass(frozen=True)
class Recognised:
    """A live trainer as one failure sees it: the configuration that it is, and the mechanism of what is loaded."""

    configuration: Configuration
    mechanism: Mechanism


@dataclass(frozen=True, eq=False)
class Failure:
    """One known way to fail. Everything else in the project is derived from these declarations.

    `observe` runs one trial in the current process and returns its facts; `probe` returns the mechanism facts of the
    current release. Both import what they need when called, so that the catalogue itself never imports torch.
    `recognise` looks at a `repro.guard.live.Live`, and returns None where the failure has nothing to say about it.
    `script` writes the part of a standalone reproduction that differs from failure to failure; what it has to define is
    said in `repro.script.standalone`. `budgeted` are the configurations whose peaks of device memory have budgets.
    """

    id: str
    title: str
    summary: str
    symptoms: tuple[Symptom, ...]
    factors: tuple[Factor, ...]
    reported: Configuration
    reported_scope: Scope
    trigger: Trigger
    observe: Callable[[Trial], Facts]
    probe: Callable[[], Mechanism]
    claims: tuple[Claim, ...]
    sources: tuple[Source, ...]
    constraints: tuple[Constraint, ...] = ()
    script: Callable[[Configuration], str] | None = None
    full_scopes: tuple[Scope, ...] = ("model",)
    pairwise_scopes: tuple[Scope, ...] = ("trainer",)
    retired: str = ""
    recognise: Callable[[Any], Recognised | None] | None = None
    budgeted: tuple[Configuration, ...] = ()

    def __post_init__(self) -> None:
        """Complete the reported configuration, so that a report names only what it deviates in."""
        object.__setattr__(self, "reported", self.configuration(**dict(self.reported)))

    def configuration(self, **levels: Level) -> Configuration:
        """Build a configuration from its deviations from the default levels.

        Raises ValueError for an unknown factor or level, naming those that exist.
        """
        known = {factor.name: factor for factor in self.factors}
        for name, level in levels.items():
            if name not in known:
                raise ValueError(f"{self.id} has no factor {name!r}; it has: {', '.join(known)}")
            if level not in known[name].levels:
                levels_text = ", ".join(map(repr, known[name].levels))
                raise ValueError(f"factor {name} of {self.id} has no level {level!r}; it has: {levels_text}")
        return Configuration({name: levels.get(name, factor.default) for name, factor in known.items()})

    def stored(self, levels: Mapping[str, Level]) -> Configuration:
        """Return a configuration as it was stored: a factor that it leaves out is at its default level.

        It may have factors and levels that are declared no more.
        """
        return Configuration({**{factor.name: factor.default for factor in self.factors}, **levels})

    def deviations(self, configuration: Configuration) -> dict[str, Level]:
        """Return the levels in which a configuration differs from the plain run."""
        return {f.name: configuration[f.name] for f in self.factors if configuration[f.name] != f.default}

    def allows(self, configuration: Configuration) -> bool:
        """Tell whether this combination of levels is a configuration of its own."""
        return all(constraint.allows(configuration) for constraint in self.constraints)

    def factors_at(self, scope: Scope) -> tuple[Factor, ...]:
        """Return the factors that exist at a scope."""
        return tuple(factor for factor in self.factors if scope in factor.scopes)

    def trial(self, configuration: Configuration, scope: Scope | None = None) -> Trial:
        """Name a configuration at a scope. The id outlives new factors: it is made of the deviations only."""
        scope = scope or self.reported_scope
        text = json.dumps(self.deviations(configuration), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return Trial(self.id, scope, configuration, f"{self.id}.{scope}.{digest}")

    def runs_on(self, configuration: Configuration, device: str) -> bool:
        """Tell whether a device can run every level of a configuration."""
        return device == "cuda" or not any(configuration[f.name] in f.cuda_levels for f in self.factors)

    def combinations(self, scope: Scope, device: str = "cpu") -> Iterator[Configuration]:
        """Yield every allowed configuration of the factors that exist at a scope."""
        factors = self.factors_at(scope)
        for levels in itertools.product(*(factor.levels_at(scope, device) for factor in factors)):
            configuration = self.configuration(**{f.name: level for f, level in zip(factors, levels, strict=True)})
            if self.allows(configuration):
                yield configuration

    def outcome(self, facts: Facts) -> str:
        """Name what happened: a symptom's outcome, `trains`, or one of the outcomes that any failure can have."""
        end = facts["end"]
        if end in UNFINISHED:
            return str(end)
        for symptom in self.symptoms:
            if symptom.seen_in(facts):
                return symptom.outcome
        if end == "refused":
            return REFUSED
        if end == "raised":
            return RAISES_OTHER
        gradients = facts.get("gradients") or {}
        if gradients.get("missing"):
            return GRADIENTS_MISSING
        if gradients.get("worst_ratio", 0.0) > 1.0 or gradients.get("not_finite"):
            return GRADIENTS_WRONG
        if not facts.get("loss_finite", True):
            return LOSS_NOT_FINITE
        if facts.get("moved") is False:
            return STANDS_STILL
        return TRAINS
