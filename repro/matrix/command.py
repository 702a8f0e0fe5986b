"""What `repro matrix` and `repro run` have in common: run a plan, tell what was found, end with the right code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from repro.catalog import failures, find
from repro.cells.cache import Cache
from repro.commands import WRONG_USAGE, Stop
from repro.matrix import summary
from repro.matrix.attempt import Setting
from repro.matrix.limits import Limits, parse_bytes
from repro.matrix.plan import Chosen, Planned
from repro.matrix.progress import Progress
from repro.matrix.run import run
from repro.observe.choose import TRIAL_SETS, TrialSet
from repro.show import matrix as view
from repro.show import terminal
from repro.store.reader import read
from repro.vocabulary import SCOPES, Failure, Scope


def execute(
    planned: Sequence[Planned],
    chosen: Chosen,
    setting: Setting,
    *,
    jobs: int,
    again: bool,
    as_json: bool,
    own_interpreter: bool = False,
) -> None:
    """Run a plan and end the command. Raises Stop when something is not as declared or could not run."""
    with Progress() as progress:
        runs = run(planned, chosen, setting, progress, cache=Cache.default(), jobs=jobs, again=again)
    found = summary.summarize(runs, chosen, setting.results, own_interpreter=own_interpreter)
    if as_json:
        terminal.print_json({"results": str(setting.results), "cells": [asdict(item) for item in found]})
    else:
        view.print_summaries(found, setting.results)
        if not chosen.trials:
            _print_verdicts(chosen, setting, found)
    code = summary.exit_code(runs, found)
    if code == 130:
        then = "begins anew" if again else "goes on where this one stopped"
        raise Stop(f"interrupted. What was observed is stored; the same command {then}.", code)
    if code == 1:
        wrong = sum(len(item.mismatches) for item in found)
        if wrong:
            raise Stop(f"{wrong} trials are not as declared", code)
        cells = ", ".join(summary.disagreeing(runs, found))
        raise Stop(f"pytest failed in {cells}, though every stored outcome is as declared", code)
    if code:
        unable = [item.name for item in found if item.trouble or item.could_not_run or item.missing]
        raise Stop(f"could not run, wholly or in part: {', '.join(unable)}", code)


def _print_verdicts(chosen: Chosen, setting: Setting, found: Sequence[summary.Summary]) -> None:
    """Show what the results of these cells say about the claims."""
    from repro.show.memory import print_memory
    from repro.show.verdicts import print_verdicts

    cells = {item.cell for item in found if item.cell}
    stored = read(setting.results)
    for damage in stored.damage:
        terminal.say(f"skipped a line that is no record: {damage}")
    for failure in chosen.failures if cells else ():
        print()
        of_these = [record for record in stored.records if record["cell"] in cells]
        print_verdicts(failure, of_these)
        print_memory(failure, of_these, setting.results)


def chosen_failures(text: str) -> tuple[Failure, ...]:
    """Return the failures of a comma-separated list; all that are not retired for an empty one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names:
        return tuple(dict.fromkeys(find(name) for name in names))
    return tuple(failure for failure in failures().values() if not failure.retired)


def trial_set_of(text: str) -> TrialSet:
    """Return a set of trials by name. Raises Stop for an unknown one."""
    for name in TRIAL_SETS:
        if text == name:
            return name
    raise Stop(f"no trial set {text!r}; there is: {', '.join(TRIAL_SETS)}", WRONG_USAGE)


def scope_of(text: str) -> Scope | None:
    """Return a scope by name, None for an empty one. Raises Stop for an unknown one."""
    for name in SCOPES:
        if text == name:
            return name
    if text:
        raise Stop(f"no scope {text!r}; there is: {', '.join(SCOPES)}", WRONG_USAGE)
    return None


def limits(
    trial_seconds: float, trial_memory: str, cell_seconds: float | None = None, cell_memory: str | None = None
) -> Limits:
    """Return limits from a command's options. Raises Stop for a size that is none."""
    try:
        bounds = Limits(trial_seconds, parse_bytes(trial_memory))
        if cell_seconds is not None:
            bounds = replace(bounds, cell_seconds=cell_seconds)
        return replace(bounds, cell_bytes=parse_bytes(cell_memory)) if cell_memory else bounds
    except ValueError as error:
        raise Stop(str(error), WRONG_USAGE) from None
