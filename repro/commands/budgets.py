"""`repro budgets`: hold observed peaks against the peaks that are allowed, and change what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.commands import COULD_NOT_RUN, DEFAULT_RESULTS, NOT_AS_DECLARED, JsonOption, ResultsOption, Stop

if TYPE_CHECKING:
    from repro.memory.budgets import Budget, Check, Key

FileOption = Annotated[Path, typer.Option("--file", metavar="FILE", help="The budget file.")]
_FILE = Path("budgets.toml")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="budgets", help="Check observed peaks of device memory against their budgets.")

    @group.command("check")
    def check_budgets(
        file: FileOption = _FILE, results: ResultsOption = DEFAULT_RESULTS, as_json: JsonOption = False
    ) -> None:
        """Compare stored peaks with the budgets; an alarm goes off in either direction (exit code 1)."""
        from repro.memory import budgets

        checks = budgets.check(_read(file), _observations(results))
        _show(checks, as_json)
        if any(each.state in budgets.ALARMS for each in checks):
            raise typer.Exit(NOT_AS_DECLARED)
        if not any(each.state == "within" for each in checks):
            raise Stop(f"nothing was compared: no budget in {file} is for a trial in {results}", COULD_NOT_RUN)

    @group.command("update")
    def update_budgets(
        file: FileOption = _FILE,
        results: ResultsOption = DEFAULT_RESULTS,
        yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
    ) -> None:
        """Show how the stored peaks differ from the budgets, then write them, if told to."""
        import datetime

        from repro.memory import budgets
        from repro.show import terminal

        known = _read(file) if file.exists() else {}
        today = datetime.datetime.now(datetime.timezone.utc).date()
        new = budgets.update(known, _observations(results), today, f"repro budgets update --results {results}")
        lines = _differences(known, new)
        if not lines:
            terminal.say("no budget differs from what was observed")
            return
        terminal.out().print("\n".join(lines), markup=False)
        if not yes and not typer.confirm(f"Write {len(lines)} changes to {file}?", err=True):
            raise Stop("nothing was written", NOT_AS_DECLARED)
        try:
            budgets.write(file, new.values())
        except budgets.BudgetFileError as error:
            raise Stop(str(error)) from error


def _read(file: Path) -> dict[Key, Budget]:
    from repro.catalog import failures
    from repro.memory import budgets

    try:
        return budgets.read(file, failures())
    except budgets.BudgetFileError as error:
        raise Stop(str(error)) from error


def _observations(results: Path) -> list[Any]:
    from repro.store.reader import read
    from repro.store.writer import ResultsError

    try:
        return list(read(results).of_kind("observation"))
    except ResultsError as error:
        raise Stop(str(error)) from error


def _show(checks: list[Check], as_json: bool) -> None:
    from dataclasses import asdict

    from repro.show import terminal

    if not as_json:
        for each in checks:
            terminal.out().print(str(each), markup=False)
        return
    rows = [
        {
            **asdict(each.key),
            "state": each.state,
            "observed": each.observed,
            "budget": each.budget.bytes if each.budget else None,
            "tolerance": each.budget.tolerance if each.budget else None,
            "holders": list(each.holders),
        }
        for each in checks
    ]
    terminal.print_json(rows)


def _differences(known: dict[Key, Budget], new: dict[Key, Budget]) -> list[str]:
    lines = []
    for key in sorted(new):
        before, after = known.get(key), new[key]
        if before is None:
            lines.append(f"+ {key}: {after.bytes:,} bytes")
        elif before != after:
            lines.append(f"~ {key}: {before.bytes:,} -> {after.bytes:,} bytes ({after.bytes - before.bytes:+,})")
    return lines
