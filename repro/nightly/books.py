"""Opening the books: the ledger of a plan file and a directory of results, and the changes between two directories."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from repro.catalog import UnknownFailureError, failures
from repro.cells.releases import table
from repro.matrix.command import chosen_failures, trial_set_of
from repro.matrix.plan import Chosen
from repro.memory import budgets
from repro.nightly import plan as planning
from repro.nightly.changes import BUDGET, UNDECLARED, Change, changes
from repro.nightly.ledger import Ledger, ledger, listing
from repro.show import terminal
from repro.store.reader import Results, collector_paused, read
from repro.store.records import JUDGED, KINDS


def open_ledger(plan: Path, results: Path) -> Ledger:
    """Return the ledger of a plan file. Results that are not there are an empty directory: all of it is missing.

    Raises PlanError for a plan that cannot be used.
    """
    entries = planning.read(plan)
    listings = {}
    for entry in entries:
        try:
            chosen = Chosen(chosen_failures(entry.failures), trial_set_of(entry.trial_set))
        except UnknownFailureError as error:
            raise planning.PlanError(f"{plan}: {error} The plan was made with another catalogue.") from None
        listings[listing(entry)] = planning.trials_of(chosen, entry.device)
    return ledger(entries, listings, _told(results).records if results.exists() else ())


def open_changes(old: Path, new: Path, budget_file: Path | None) -> Sequence[Change]:
    """Return what changed between two results. Raises ResultsError, or BudgetFileError."""
    allowed = budgets.read(budget_file) if budget_file else {}
    with collector_paused():  # the records are let go before it ends: no name here holds them
        return changes(
            _told(old, JUDGED).records, _told(new, JUDGED).records, tuple(failures().values()), allowed, table()
        )


def still_wrong(new: Path, budget_file: Path | None, told: Sequence[Change]) -> Sequence[Change]:
    """Return what is not as declared or not within its budget in results, and is not among the changes told."""
    allowed = budgets.read(budget_file) if budget_file else {}
    with collector_paused():
        now = changes((), _told(new, JUDGED).records, tuple(failures().values()), allowed)
    known = {
        (change.failure, change.transformers, change.torch, change.device, t) for change in told for t in change.trials
    }
    return [
        change
        for change in now
        if change.kind in (UNDECLARED, BUDGET)
        and not any(
            (change.failure, change.transformers, change.torch, change.device, t) in known for t in change.trials
        )
    ]


def peaks_unchecked(new: Path, budget_file: Path | None) -> str:
    """Say why no peak in results could be held against a budget; nothing where one was, or where there are none."""
    allowed = budgets.read(budget_file) if budget_file else {}
    checks = budgets.check(allowed, _told(new, ("observation",)).of_kind("observation"))
    if not allowed or any(each.observed is not None and each.budget is not None for each in checks):
        return ""
    return (
        f"no peak was held against a budget: {budget_file} has none for these releases with this torch. Look at the "
        "peaks, then: repro budgets update"
    )


def _told(results: Path, kinds: Collection[str] = KINDS) -> Results:
    found = read(results, kinds=kinds)
    for damage in found.damage:
        terminal.say(f"skipped a line that is no record: {damage}")
    return found
