"""What a script is to show: which configuration in which stored cell, and what is known to happen there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from repro.judge.observed import Cell, cells
from repro.judge.verdicts import cell_to_move_to
from repro.store.records import Record
from repro.vocabulary import REFUSED, UNFINISHED, Claim, Configuration, Failure, Level


class ChoiceError(ValueError):
    """There is no such script; the message says why, and what there is."""


@dataclass(frozen=True)
class Chosen:
    """A configuration in a cell. `expected` is its outcome there; `how` tells where that is known from."""

    failure: Failure
    configuration: Configuration
    claim: Claim | None
    cell: Cell
    resolved: Mapping[str, str]
    python: str
    date: str
    expected: str
    how: str


def choose(
    failure: Failure, records: Sequence[Record], *, configuration: str = "", claim: str = "", transformers: str = ""
) -> Chosen:
    """Choose from stored results. Without `transformers`: the newest cell in which the reported run fails.

    Raises ChoiceError for what does not exist, or where nothing stored tells what would happen.
    """
    observed = cells(failure, records)
    if not observed:
        raise ChoiceError(f"nothing stored about {failure.id}: name --results, or run `repro matrix` first.")
    cell = _cell(failure, observed, transformers)
    advice = _claim(failure, claim) if claim else None
    start = parsed(failure, configuration, (advice.base if advice else None) or failure.reported)
    if advice and advice.pin:
        cell = _moved(advice, cell, observed)
    levels = start.but(**_change(failure, advice, start, cell)) if advice else start
    if not failure.allows(levels):
        raise ChoiceError(
            f"{', '.join(c.says for c in failure.constraints if not c.allows(levels))}: no such configuration"
        )
    if not failure.runs_on(levels, cell.device) or (advice and advice.needs_device not in ("", cell.device)):
        raise ChoiceError(
            f"{(advice and advice.why_device) or 'it needs a CUDA device'}: no cell that could tell is stored."
        )
    about = next((r for r in records if r["kind"] == "cell" and r["cell"] == cell.id), {})
    expected, how = _expected(failure, levels, cell)
    date = max(record["time"][:10] for its in cell.observations.values() for record in its)
    return Chosen(
        failure, levels, advice, cell, about.get("resolved", {}), str(about.get("python", "")), date, expected, how
    )


def parsed(failure: Failure, text: str, reported: Configuration) -> Configuration:
    """Return a configuration from text: levels in which it differs from the reported run, or from `plain`.

    Raises ChoiceError for what is no factor or level.
    """
    configuration = reported
    levels: dict[str, Level] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part in ("plain", "reported"):
            configuration = failure.configuration() if part == "plain" else reported
            continue
        name, equals, wanted = part.partition("=")
        if not equals:
            raise ChoiceError(f"{part!r} is no setting: write factor=level, or `plain` or `reported` to start from.")
        factor = next((factor for factor in failure.factors if factor.name == name.strip()), None)
        if factor is None:
            raise ChoiceError(
                f"{failure.id} has no factor {name!r}; it has: {', '.join(f.name for f in failure.factors)}"
            )
        level = next((level for level in factor.levels if str(level) == wanted.strip()), None)
        if level is None:
            raise ChoiceError(f"{name} has no level {wanted!r}; it has: {', '.join(map(str, factor.levels))}")
        levels[factor.name] = level
    return configuration.but(**levels)


def _cell(failure: Failure, observed: Sequence[Cell], transformers: str) -> Cell:
    """Return the newest cell of a release; without one, the newest of those that fail, else of all."""
    if transformers:
        found = [cell for cell in observed if cell.transformers == transformers]
        if not found:
            releases = ", ".join(dict.fromkeys(cell.transformers for cell in observed))
            raise ChoiceError(f"no cell with transformers {transformers} is stored; there is: {releases}")
        return found[-1]
    symptoms = {symptom.outcome for symptom in failure.symptoms}
    failing = [cell for cell in observed if cell.outcome_of(failure, failure.reported).name in symptoms]
    return (failing or observed)[-1]


def _claim(failure: Failure, claim: str) -> Claim:
    found = next((item for item in failure.claims if item.id == claim), None)
    if found is None:
        raise ChoiceError(f"{failure.id} has no claim {claim!r}; it has: {', '.join(c.id for c in failure.claims)}")
    if found.kind == "statement":
        raise ChoiceError(f"{claim} states something and changes nothing: choose advice, or a --configuration.")
    return found


def _moved(claim: Claim, cell: Cell, observed: Sequence[Cell]) -> Cell:
    there = cell_to_move_to(claim, cell, observed)
    if there is None:
        wanted = ", ".join(f"{package} {version}" for package, version in claim.pin.items())
        raise ChoiceError(
            f"{claim.id} leads from transformers {cell.transformers} to a cell with {wanted}: none is stored."
        )
    return there


def _change(failure: Failure, claim: Claim, start: Configuration, cell: Cell) -> Mapping[str, Level]:
    """Return a claim's change, in today's spelling where the release refuses it as written."""
    if claim.today and cell.outcome_of(failure, start.but(**claim.change)).name == REFUSED:
        return claim.today
    return claim.change


def _expected(failure: Failure, configuration: Configuration, cell: Cell) -> tuple[str, str]:
    """Say what happens: as observed in this very cell, or as the trigger predicts from what a probe saw there."""
    outcome = cell.outcome_of(failure, configuration)
    expected, how = (
        outcome.name,
        f"observed with transformers {cell.transformers} and torch {Version(cell.torch).public}",
    )
    if expected is None and cell.mechanism is not None:
        expected = failure.trigger.predict(configuration, failure.reported_scope, cell.mechanism)
        how = "as the trigger predicts; this very configuration was not observed"
    if expected is None or expected in UNFINISHED:
        raise ChoiceError(f"nothing stored tells what this configuration does in transformers {cell.transformers}.")
    if expected == REFUSED:
        raise ChoiceError(f"transformers {cell.transformers} has no such argument: there is nothing to run.")
    return expected, how
