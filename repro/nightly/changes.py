"""What changed between two sets of results, by meaning. A pure function of records, declarations, budgets, releases.

Cells are compared with the cell of the same release, torch and device; where torch alone moved, with the one of the
same release. Trials that changed in the same way in one cell are one change.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from repro.cells.releases import Table, last_patches
from repro.frontier.question import AFFECTED, GOOD, Question
from repro.judge.observed import Cell, Outcome, by_failure, cells, version
from repro.judge.verdicts import verdicts_in
from repro.memory import budgets
from repro.memory.budgets import Budget, Key
from repro.store.records import Record
from repro.vocabulary import REFUSED, TRAINS, Failure, Trial

APPEARS, DISAPPEARS, OTHERWISE = "failure appears", "failure disappears", "outcome changes"
VERDICT, UNJUDGED, FRONTIER = "verdict changes", "no longer judged", "frontier moves"
BUDGET, PEAK, DRIFT = "peak leaves its budget", "peak moves", "gradients drift"
UNDECLARED, UNOBSERVED = "not as declared", "no longer observed"
GONE, COVERED, UNCOVERED = "cell gone", "release newly covered", "release not covered"
KINDS = (
    APPEARS,
    VERDICT,
    UNDECLARED,
    BUDGET,
    DRIFT,
    DISAPPEARS,
    FRONTIER,
    OTHERWISE,
    PEAK,
    UNOBSERVED,
    UNJUDGED,
    GONE,
    UNCOVERED,
    COVERED,
)
"""In the order in which they are told: harm first."""
QUIET = (COVERED,)
"""What is told beside other news, and is none by itself."""

MOVED_PEAK = 0.02
"""Share of a peak without a budget by which it has to move to be told."""
MOVED_GRADIENT = 0.1
"""Share of the tolerance by which the largest difference to the twin has to move to be told."""


@dataclass(frozen=True)
class Change:
    """One thing that changed. `before` and `after` are null where there was, or is, nothing to compare.

    `declared` is what the trigger predicts in the new results. `configuration` is how the plainest of the `trials`
    differs from the plain run.
    """

    kind: str
    failure: str | None
    transformers: str | None = None
    torch: str | None = None
    device: str | None = None
    claim: str | None = None
    before: str | int | float | None = None
    after: str | int | float | None = None
    detail: str = ""
    declared: str | None = None
    reported: bool = False
    configuration: Mapping[str, Any] = field(default_factory=dict)
    trials: tuple[str, ...] = ()

    @property
    def news(self) -> bool:
        """Whether someone should look."""
        return self.kind not in QUIET


def changes(
    old: Sequence[Record],
    new: Sequence[Record],
    failures: Sequence[Failure],
    allowed: Mapping[Key, Budget],
    releases: Table | None = None,
) -> list[Change]:
    """Return what changed, harm first, then by failure and release."""
    found: list[Change] = []
    sides = by_failure(old), by_failure(new)
    for failure in failures:
        before, after = (cells(failure, side.get(failure.id, ())) for side in sides)
        found += _of_failure(failure, before, after)
    found += _peaks(allowed, old, new)
    found += _uncovered([*old, *new], releases) if releases else ()
    return sorted(found, key=lambda c: (KINDS.index(c.kind), c.failure or "", version(c.transformers), not c.reported))


def _of_failure(failure: Failure, before: Sequence[Cell], after: Sequence[Cell]) -> Iterator[Change]:
    pairs, gone, fresh = _paired(before, after)
    for one, other in pairs:
        then, now = _observed(failure, one), _observed(failure, other)
        yield from _outcomes(failure, one, other, then, now)
        yield from _undeclared(failure, other, then, now)
        yield from _gradients(failure, other, then, now)
    for cell in fresh:
        yield from _undeclared(failure, cell, {}, _observed(failure, cell))
        yield Change(COVERED, failure.id, *_where(cell), after=_status(failure, cell))
    for cell in gone:
        yield Change(GONE, failure.id, *_where(cell), before=_status(failure, cell))
    yield from _verdicts(failure, pairs, before, after)
    yield from _frontier(failure, before, after)


def _where(cell: Cell) -> tuple[str, str, str]:
    return cell.transformers, cell.torch, cell.device


def _paired(before: Sequence[Cell], after: Sequence[Cell]) -> tuple[list[tuple[Cell, Cell]], list[Cell], list[Cell]]:
    """Return cells with their successors, those without one, and those that succeed none."""
    pairs: list[tuple[Cell, Cell]] = []
    gone, fresh = ({_where(cell): cell for cell in side} for side in (before, after))
    pairs += [(gone.pop(place), fresh.pop(place)) for place in list(gone) if place in fresh]
    for place, cell in list(gone.items()):
        like = [p for p in fresh if (p[0], p[2]) == (place[0], place[2])]
        rivals = [p for p in gone if (p[0], p[2]) == (place[0], place[2])]
        if len(like) == len(rivals) == 1:
            pairs.append((cell, fresh.pop(like[0])))
            del gone[place]
    return pairs, list(gone.values()), list(fresh.values())


def _status(failure: Failure, cell: Cell) -> str | None:
    return cell.outcome_of(failure, failure.reported).name


Observed = Mapping[str, Outcome]
"""What a cell has records of, by the id of the trial."""


def _observed(failure: Failure, cell: Cell) -> Observed:
    """Return the outcome of every trial that a cell has records of."""
    return {name: cell.outcome(failure, name) for name in cell.observations}


def _trial(failure: Failure, cell: Cell, name: str) -> Trial:
    """Return a trial as it was stored, which may be one that is no longer declared."""
    stored = cell.observations[name][-1]
    return Trial(failure.id, stored["scope"], failure.stored(stored["configuration"]), name)


def _declared(failure: Failure, cell: Cell, trial: Trial) -> str | None:
    """Return what the trigger predicts, or None where it says nothing or knows none of the levels any more."""
    if cell.mechanism is None:
        return None
    try:
        return failure.trigger.predict(trial.configuration, trial.scope, cell.mechanism)
    except (KeyError, ValueError):
        return None


def _outcomes(failure: Failure, one: Cell, other: Cell, then: Observed, now: Observed) -> Iterator[Change]:
    moved: dict[tuple[str, str | None, str | None, str | None], list[Trial]] = defaultdict(list)
    for name, outcome in now.items():
        before = then[name].name if name in then else None
        if before is not None and before != outcome.name:
            kind, trial = _kind(before, outcome.name), _trial(failure, other, name)
            moved[kind, before, outcome.name, _declared(failure, other, trial)].append(trial)
    gone = [name for name, outcome in then.items() if name not in now and outcome.name is not None]
    lost = [_trial(failure, one, name) for name in gone]
    if lost:
        moved[UNOBSERVED, None, None, None] += lost
    for (kind, before, after, declared), trials in moved.items():
        detail = f"torch {one.torch} before" if one.torch != other.torch else ""
        yield _grouped(kind, failure, other, trials, before=before, after=after, declared=declared, detail=detail)


def _kind(before: str, after: str | None) -> str:
    if after is None:
        return UNOBSERVED
    if before in (TRAINS, REFUSED) and after not in (TRAINS, REFUSED):
        return APPEARS
    if after == TRAINS:
        return DISAPPEARS
    return OTHERWISE


def _undeclared(failure: Failure, other: Cell, then: Observed, now: Observed) -> Iterator[Change]:
    """Tell outcomes that the trigger does not predict, but for those that were the same before."""
    wrong: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for name, outcome in now.items():
        if outcome.name is None or (name in then and then[name].name is not None):
            continue
        trial = _trial(failure, other, name)
        declared = _declared(failure, other, trial)
        if declared not in (None, outcome.name):
            wrong[str(declared), outcome.name].append(trial)
    for (declared, observed), trials in wrong.items():
        yield _grouped(UNDECLARED, failure, other, trials, after=observed, declared=declared)


def _grouped(kind: str, failure: Failure, cell: Cell, trials: Sequence[Trial], **more: Any) -> Change:
    reported = failure.trial(failure.reported).id
    plainest = min(trials, key=lambda t: (t.id != reported, len(_deviations(failure, t)), t.id))
    names = tuple(sorted(trial.id for trial in trials))
    return Change(
        kind,
        failure.id,
        *_where(cell),
        **more,
        reported=plainest.id == reported,
        configuration=_deviations(failure, plainest),
        trials=names,
    )


def _deviations(failure: Failure, trial: Trial) -> dict[str, Any]:
    """Return how a stored configuration differs from the plain run, factors that are gone since included."""
    default = {factor.name: factor.default for factor in failure.factors}
    return {name: level for name, level in trial.configuration.items() if default.get(name) != level}


def _gradients(failure: Failure, other: Cell, then: Observed, now: Observed) -> Iterator[Change]:
    """Tell runs that train on both sides and whose difference to the twin moved; the one that moved most, by name."""
    moved = []
    for name, outcome in now.items():
        if name in then and outcome.name == then[name].name == TRAINS:
            before, after = (_ratio(side[name]) for side in (then, now))
            if before is not None and after is not None and abs(after - before) > MOVED_GRADIENT:
                moved.append((abs(after - before), before, after, _trial(failure, other, name)))
    if moved:
        _, before, after, trial = max(moved, key=lambda item: (item[0], item[3].id))
        change = _grouped(DRIFT, failure, other, [trial], before=round(before, 4), after=round(after, 4))
        yield replace(change, trials=tuple(sorted(item[3].id for item in moved)), detail="share of the tolerance")


def _ratio(outcome: Outcome) -> float | None:
    ratio = (outcome.facts.get("gradients") or {}).get("worst_ratio")
    return float(ratio) if isinstance(ratio, (int, float)) else None


def _verdicts(
    failure: Failure, pairs: Sequence[tuple[Cell, Cell]], before: Sequence[Cell], after: Sequence[Cell]
) -> Iterator[Change]:
    then, now = ({_row(row): row for row in verdicts_in(failure, side)} for side in (before, after))
    successor = {one.id: other.id for one, other in pairs}
    for (cell, claim, spelling), row in then.items():
        later = now.get((successor.get(cell, ""), claim, spelling))
        if later is None or row["verdict"] is None or row["verdict"] == later["verdict"]:
            continue
        kind = UNJUDGED if later["verdict"] is None else VERDICT
        where = (later["transformers"], later["torch"], later["device"])
        told = str(later["detail"])
        yield Change(kind, failure.id, *where, claim=claim, before=row["verdict"], after=later["verdict"], detail=told)


def _row(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["cell"], row["claim"], row["spelling"]


Edge = tuple[str, str, str]
"""What changes (`affected` or `good` from here on), the last release before, the first release after."""


def _frontier(failure: Failure, before: Sequence[Cell], after: Sequence[Cell]) -> Iterator[Change]:
    """Tell edges that contradict those known before; one that is merely known more closely now has not moved."""
    axes = sorted({(cell.torch, cell.device) for cell in before} & {(cell.torch, cell.device) for cell in after})
    for torch, device in axes:
        then, now = (
            _edges(failure, [cell for cell in side if (cell.torch, cell.device) == (torch, device)])
            for side in (before, after)
        )
        if not _agree(then, now):
            told = (_tell(then), _tell(now))
            yield Change(FRONTIER, failure.id, None, torch, device, before=told[0], after=told[1])


def _edges(failure: Failure, observed: Sequence[Cell]) -> list[Edge]:
    known = [(cell.transformers, Question(failure).answer(cell).value) for cell in observed]
    known = [(release, value) for release, value in known if value in (AFFECTED, GOOD)]
    return [
        (str(there), release, other) for (release, here), (other, there) in itertools.pairwise(known) if here != there
    ]


def _agree(then: Sequence[Edge], now: Sequence[Edge]) -> bool:
    """Tell whether two lists of edges can both be true: the same changes, between releases that overlap."""
    return len(then) == len(now) and all(
        one[0] == other[0] and max(version(one[1]), version(other[1])) < min(version(one[2]), version(other[2]))
        for one, other in zip(then, now, strict=True)
    )


def _tell(edges: Sequence[Edge]) -> str:
    return "; ".join(f"{what} between {low} and {high}" for what, low, high in edges) or "no edge"


def _peaks(allowed: Mapping[Key, Budget], old: Iterable[Record], new: Iterable[Record]) -> Iterator[Change]:
    """Tell peaks that left their budgets since, and those that moved without having one."""
    sides = [[record for record in side if record["kind"] == "observation"] for side in (old, new)]
    states = {check.key: check for check in budgets.check(allowed, sides[0])}
    then = budgets.peaks(sides[0])
    for check in budgets.check(allowed, sides[1]):
        key, observed = check.key, check.observed
        before = int(then[key]["peak_bytes"]) if key in then else None
        where = (key.failure, key.transformers, key.torch, key.device)
        if check.budget is not None and check.state in budgets.ALARMS:
            if key in states and states[key].state == check.state:
                continue
            told = f"{check.state}: allowed {check.budget.bytes} ± {check.budget.tolerance} bytes"
            yield Change(BUDGET, *where, before=before, after=observed, detail=told, trials=(key.trial,))
        elif check.budget is None and before and observed and abs(observed - before) > MOVED_PEAK * before:
            yield Change(
                PEAK, *where, before=before, after=observed, detail="bytes, without a budget", trials=(key.trial,)
            )


def _uncovered(known: Sequence[Record], releases: Table) -> Iterator[Change]:
    """Tell releases newer than the newest that has or had a cell: the last patch of each minor, and pre-releases."""
    covered = {record["transformers"] for record in known if "transformers" in record}
    usable = [release for release in releases.of("transformers") if not release.yanked]
    newest = max((r.parsed for r in usable if r.version in covered), default=None)
    for release in last_patches(r for r in usable if newest is not None and r.parsed > newest):
        yield Change(UNCOVERED, None, release.version, detail=f"uploaded {release.uploaded.isoformat()}")
