"""`repro matrix`: failures by releases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro.commands import DEFAULT_RESULTS, WRONG_USAGE, JsonOption, ResultsOption, Stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("matrix")
    def matrix(
        transformers: Annotated[
            list[str] | None,
            typer.Option(
                metavar="LIST",
                help="Comma-separated: versions (4.52.4; 4.52 is its last patch), a range ('>=4.50,<5': every release "
                "in it), `latest`, `all` (the last patch of every minor since 4.36). May be repeated. A yanked release "
                "is run only when its whole version is named. Default: latest, unless there is --environment.",
            ),
        ] = None,
        failures: Annotated[
            str, typer.Option(metavar="LIST", help="Comma-separated failures; all when left out.")
        ] = "",
        environment: Annotated[
            list[Path] | None,
            typer.Option(metavar="PATH", help="A virtual environment, or its python, used as it is. May be repeated."),
        ] = None,
        trial_set: Annotated[str, typer.Option(metavar="full|reference|budgeted", help="Which trials.")] = "full",
        torch: Annotated[
            str,
            typer.Option(
                metavar="LIST",
                help="torch for the cells, comma-separated: versions, or `of-its-time`: the newest there was at the "
                "release. Default: the one installed here, else the newest.",
            ),
        ] = "",
        python: Annotated[
            str, typer.Option(metavar="3.N", help="Python for the cells. Default: this one, if it fits.")
        ] = "",
        prereleases: Annotated[bool, typer.Option("--prereleases", help="Take pre-releases too.")] = False,
        results: ResultsOption = DEFAULT_RESULTS,
        again: Annotated[bool, typer.Option("--again", help="Run what was observed already, too.")] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Show what would run and what it costs; run nothing.")
        ] = False,
        offline: Annotated[bool, typer.Option("--offline", help="Use cached cells only.")] = False,
        jobs: Annotated[
            int | None, typer.Option(min=1, help="Cells at a time. Default: one per core, 8 at most.")
        ] = None,
        trial_seconds: Annotated[float, typer.Option(min=0.1, help="Limit of a trial.")] = 120.0,
        trial_memory: Annotated[str, typer.Option(metavar="SIZE", help="Limit of a trial.")] = "6GiB",
        cell_seconds: Annotated[float, typer.Option(min=1, help="Limit of a cell, its building not counted.")] = 3600.0,
        cell_memory: Annotated[str, typer.Option(metavar="SIZE", help="Limit of a cell.")] = "12GiB",
        as_json: JsonOption = False,
    ) -> None:
        """Run failures in releases of transformers: build what is missing, run what is not observed yet, and tell.

        Interrupt it when you like: the same command goes on where it stopped. Exits with 1 when an outcome is not as
        declared, else with 3 when a cell could not run, and with 130 after an interrupt.
        """
        from repro.cells.cache import Cache
        from repro.cells.releases import SelectionError, table
        from repro.matrix import plan as planning
        from repro.matrix.attempt import Setting
        from repro.matrix.command import chosen_failures, execute, limits, trial_set_of
        from repro.show import matrix as view
        from repro.show import terminal

        chosen = planning.Chosen(chosen_failures(failures), trial_set_of(trial_set))
        bounds = limits(trial_seconds, trial_memory, cell_seconds, cell_memory)
        wanted = transformers or ([] if environment else ["latest"])
        torches = [item.strip() for item in torch.split(",") if item.strip()]
        try:
            asked = planning.candidates(
                wanted, environment or [], table(), torch=torches, python=python, prereleases=prereleases
            )
        except SelectionError as error:
            raise Stop(str(error), WRONG_USAGE) from None
        cache = Cache.default()
        planned = planning.plan(asked, chosen, results, cache=cache, again=again, offline=offline)
        to_run = sum(bool(item.trials) for item in planned)
        jobs, workers = planning.sharing(to_run, jobs)
        rows = [planning.as_row(item) for item in planned]
        cost = planning.cost(planned, results, jobs=jobs, workers=workers, cache=cache)
        if dry_run:
            if as_json:
                terminal.print_json({"cells": rows, "seconds": round(cost.seconds), "bytes": cost.bytes})
            else:
                view.print_plan(rows, cost, jobs, workers)
            return
        trials = sum(len(item.trials) for item in planned)
        work = f"{terminal.counted(trials, 'trial')} in {terminal.counted(to_run, 'cell')}"
        terminal.say(f"{work}, {jobs} at a time: about {view.duration(cost.seconds)}")
        setting = Setting(results, bounds, workers, trial_set)
        execute(planned, chosen, setting, jobs=jobs, again=again, as_json=as_json)
