"""The ledger: what became of every trial that a plan asked for. What is not in the results is missing, never forgotten.

A pure function of a plan and stored results. A planned cell is found again by what it is (releases, Python, device),
since what a resolver made of it is not known when it is planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from repro.nightly.plan import MAIN, Entry, digest
from repro.store.records import Record

OBSERVED, SKIPPED, MISSING = "observed", "skipped with a declared reason", "missing"
NOT_BUILT, NOT_RUN, SKIPPED_SILENTLY = "could not build", "could not run", "skipped without a reason"
STATES = (
    OBSERVED,
    SKIPPED,
    NOT_BUILT,
    NOT_RUN,
    "crashed",
    "timed out",
    "over its memory limit",
    SKIPPED_SILENTLY,
    MISSING,
)
GREEN = (OBSERVED, SKIPPED)
UNABLE = (NOT_BUILT, NOT_RUN)
"""What the environment is to blame for: exit code 3, where nothing worse is found."""


@dataclass(frozen=True)
class Fate:
    """What became of one trial; `detail` says why, where it was not observed."""

    trial: str
    state: str
    detail: str = ""


@dataclass(frozen=True)
class Line:
    """One planned cell: how many trials are in each state, and those that are not observed by name.

    `skipped` is why it was planned not to run, where it was.
    """

    name: str
    cells: tuple[str, ...]
    counts: Mapping[str, int]
    trouble: tuple[str, ...]
    fates: tuple[Fate, ...] = field(default=())
    skipped: str = ""

    @property
    def green(self) -> bool:
        """Whether all of it ran, and anything at all."""
        return not self.trouble


@dataclass(frozen=True)
class Ledger:
    """All planned cells. `trouble` is what is wrong with the plan as a whole; `unplanned` are cells besides."""

    lines: tuple[Line, ...]
    trouble: tuple[str, ...] = ()
    unplanned: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are in each state."""
        total: Counter[str] = Counter()
        for line in self.lines:
            total.update(line.counts)
        return {state: total[state] for state in STATES if total[state]}

    @property
    def green(self) -> bool:
        """Whether everything that was planned ran."""
        return not self.trouble and all(line.green for line in self.lines)

    @property
    def only_unable(self) -> bool:
        """Whether nothing is wrong but that cells could not be built or run."""
        bad = {state for line in self.lines for state in line.counts if state not in GREEN}
        return not self.green and not self.trouble and bool(bad) and bad <= set(UNABLE)


@dataclass
class _Seen:
    """What the results hold of one cell."""

    facts: Record
    latest: dict[str, Record] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)


def ledger(
    entries: Sequence[Entry], listings: Mapping[tuple[str, str, str], Sequence[str]], records: Iterable[Record]
) -> Ledger:
    """Hold results against a plan. `listings` are the ids of the trials by (failures, set, device), see `listing`.

    A trial observed more than once counts as what it was last; but an end that was seen beats one that was not.
    """
    seen, failed = _by_cell(records)
    lines = []
    claimed: set[str] = set()
    for entry in entries:
        if entry.skipped:
            lines.append(_skipped(entry, listings[listing(entry)]))
            continue
        cells = [cell for cell, what in seen.items() if _is(entry, what.facts)]
        claimed.update(cells)
        reasons = [record for record in failed if _failed(entry, record, cells, entries)]
        lines.append(_line(entry, listings[listing(entry)], cells, seen, reasons))
    trouble = () if entries else ("the plan has no cells: nothing was asked for, so nothing is proven",)
    return Ledger(tuple(lines), trouble, tuple(cell for cell in seen if cell not in claimed))


def listing(entry: Entry) -> tuple[str, str, str]:
    """Return what decides which trials an entry has."""
    return entry.failures, entry.trial_set, entry.device


def _by_cell(records: Iterable[Record]) -> tuple[dict[str, _Seen], list[Record]]:
    seen: dict[str, _Seen] = {}
    failed = []
    orphans = []
    for record in records:
        kind, cell = record["kind"], record["cell"]
        if kind == "cell":
            # It says more than an observation does, which may have come first where a clock went backwards.
            if cell not in seen or seen[cell].facts["kind"] != "cell":
                seen[cell] = _Seen(record)
        elif kind == "cell failed":
            failed.append(record)
        elif kind in ("observation", "started"):
            orphans.append(record)
            if cell not in seen and "transformers" in record:
                seen[cell] = _Seen(record)
    for record in orphans:
        if (what := seen.get(record["cell"])) is None:
            continue
        if record["kind"] == "started":
            what.started.add(record["trial"])
        elif (
            (known := what.latest.get(record["trial"])) is None
            or _state(record) == OBSERVED
            or _state(known) != OBSERVED
        ):
            what.latest[record["trial"]] = record
    return seen, failed


def _is(entry: Entry, facts: Record) -> bool:
    """Tell whether a cell is the one that was planned."""
    if facts.get("device") != entry.device:
        return False
    if entry.transformers == MAIN:
        return facts.get("requested") == entry.name
    torch = str(facts.get("torch")).partition("+")[0]
    return (
        facts.get("transformers") == entry.transformers
        and entry.torch in ("", torch)
        and (not entry.python or str(facts.get("python")).split(".")[:2] == entry.python.split("."))
        and not str(facts.get("requested")).startswith("environment ")
    )


def _failed(entry: Entry, record: Record, cells: Sequence[str], entries: Sequence[Entry]) -> bool:
    """Tell whether a record of a cell that failed is about this entry: by its cell, or by what a person calls it."""
    if record["cell"] in cells:
        return True
    if cells:  # it was built, so that what could not be is another of that name
        return False
    names = {entry.name, entry.cell, f"transformers {entry.transformers} with torch {entry.torch}"}
    if sum((other.transformers, other.device) == (entry.transformers, entry.device) for other in entries) == 1:
        names.add(f"transformers {entry.transformers}")
    return record.get("requested") in names


def _line(
    entry: Entry, trials: Sequence[str], cells: Sequence[str], seen: Mapping[str, _Seen], failed: Sequence[Record]
) -> Line:
    trouble = []
    if len(trials) != entry.trials or digest(trials) != entry.digest:
        trouble.append(
            f"planned with {entry.trials} trials, and the catalogue here has {len(trials)} or others: make the plan "
            "and the ledger with one version"
        )
    fates = [_fate(trial, [seen[cell] for cell in cells], failed) for trial in trials]
    counts = Counter(fate.state for fate in fates)
    if not counts[OBSERVED]:
        trouble.insert(0, f"nothing was observed: {failed[-1]['reason']}" if failed else "nothing was collected")
    trouble += [f"{counts[state]} {state}" for state in STATES if counts[state] and state not in GREEN]
    ordered = {state: counts[state] for state in STATES if counts[state]}
    return Line(entry.name, tuple(cells), ordered, tuple(trouble), tuple(f for f in fates if f.state != OBSERVED))


def _skipped(entry: Entry, trials: Sequence[str]) -> Line:
    fates = tuple(Fate(trial, SKIPPED, entry.skipped) for trial in trials)
    return Line(entry.name, (), {SKIPPED: len(trials)}, (), fates, entry.skipped)


def _fate(trial: str, cells: Sequence[_Seen], failed: Sequence[Record]) -> Fate:
    found = [cell.latest[trial] for cell in cells if trial in cell.latest]
    if found:
        best = min(found, key=lambda record: STATES.index(_state(record)))
        return Fate(trial, _state(best), str(best.get("detail", "")))
    for record in reversed(failed):
        state = MISSING if record["stage"] == "pytest" else NOT_BUILT
        return Fate(trial, state, str(record["reason"]))
    begun = any(trial in cell.started for cell in cells)
    return Fate(trial, MISSING, "started, and left no observation" if begun else "not in the results")


def _state(record: Record) -> str:
    end = str(record["end"])
    if end == "skipped":
        return SKIPPED if record.get("detail") else SKIPPED_SILENTLY
    return end if end in STATES else OBSERVED
