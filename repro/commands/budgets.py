"""`repro budgets`: hold observed peaks against the peaks that are allowed, and change what is allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.commands import COULD_NOT_RUN, DEFAULT_RESULTS, NOT_AS_DECLARED, JsonOption, ResultsOption, Stop

if TYPE_CHECKING:
    from repro.memory.budgets import Budget, Check, Key
    from repro.memory.compare import Difference

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
        stored = [_described(record) for record in _observations(results) if _wanted(record, known)]
        new = budgets.update(known, stored, today)
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

    @group.command("compare")
    def compare_budgets(
        results: ResultsOption = DEFAULT_RESULTS,
        against: Annotated[
            str, typer.Option(metavar="RELEASE", help="What to compare with. Default: the newest observed.")
        ] = "",
        as_json: JsonOption = False,
    ) -> None:
        """Say how the same trials' peaks differ between releases, and which functions hold the difference."""
        from dataclasses import asdict

        from repro.memory.compare import differences
        from repro.show import terminal

        found = differences(_observations(results), against)
        if not found:
            raise Stop(f"nothing to compare: {results} has no trial with a peak in two releases", COULD_NOT_RUN)
        if as_json:
            terminal.print_json([{**asdict(each), "explained": each.explained} for each in found])
        else:
            terminal.out().print("\n".join(_compared(found)), markup=False)


def _wanted(record: Mapping[str, Any], known: Mapping[Key, Budget]) -> bool:
    """Tell whether a peak is to have a budget: it is declared so, or has one already."""
    from repro.catalog import failures
    from repro.memory import budgets

    failure = failures().get(record["failure"])
    declared = failure is not None and any(failure.trial(c).id == record["trial"] for c in failure.budgeted)
    return declared or budgets.key_of(record) in known


def _described(record: Mapping[str, Any]) -> dict[str, Any]:
    """Add to an observation what a budget says of the run it is for."""
    from repro.catalog import failures

    failure = failures().get(record["failure"])
    if failure is None:
        return dict(record)
    from repro.commands.explain import law_of

    plain, stored = failure.configuration(), record["configuration"]
    changed = [f"{name}={level}" for name, level in stored.items() if plain.get(name) != level]
    said = ", ".join(changed) or "the plain run"
    law = law_of(failure)
    known = {name: stored[name] for name in plain if name in stored}
    return {**record, "run": said, "law": law(failure.configuration(**known)).short if law else ""}


def _compared(found: Sequence[Difference]) -> Iterator[str]:
    where = None
    for each in found:
        place = (each.failure, each.device, each.torch, each.release, each.against)
        if place != where:
            yield f"{each.failure} on {each.device}, torch {each.torch}: {each.release} against {each.against}"
            where = place
        trials = f"{len(each.trials)} trial{'s' if len(each.trials) > 1 else ''}"
        trials += f", highest in {each.phase}" if each.phase else ""
        if not each.bytes:
            yield f"  {trials}: the same to the byte"
            continue
        yield f"  {trials}: {each.bytes:+,} bytes ({each.trials[0]}{', ...' if len(each.trials) > 1 else ''})"
        yield from (f"    {nbytes:>+12,}  {name}" for name, nbytes in each.told)
        if not each.explained:
            yield "    which functions hold it is kept of trials that have a budget only"


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
        counted = [each for each in checks if each.state in ("no budget", "cell not run")]
        for each in checks:
            if each not in counted:
                terminal.out().print(str(each), markup=False)
        for state, many in Counter(each.state for each in counted).items():
            terminal.out().print(f"{state}: {many} (--json lists them)", markup=False)
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
