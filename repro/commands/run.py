"""`repro run`: a failure in this environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro.commands import DEFAULT_RESULTS, WRONG_USAGE, JsonOption, ResultsOption, Stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("run")
    def run(
        failure: Annotated[str, typer.Argument(help="A failure's id (see `repro list`).")],
        trial: Annotated[
            list[str] | None,
            typer.Option(metavar="ID", help="Exactly this trial. May be repeated."),
        ] = None,
        scope: Annotated[str, typer.Option(metavar="model|trainer", help="Only the trials of this scope.")] = "",
        trial_set: Annotated[
            str, typer.Option("--set", metavar="full|reference|budgeted", help="Which trials.")
        ] = "full",
        environment: Annotated[
            Path | None,
            typer.Option(metavar="PATH", help="A virtual environment, or its python, instead of this one."),
        ] = None,
        results: ResultsOption = DEFAULT_RESULTS,
        trial_seconds: Annotated[float, typer.Option(min=0.1, help="Limit of a trial.")] = 120.0,
        trial_memory: Annotated[str, typer.Option(metavar="SIZE", help="Limit of a trial.")] = "6GiB",
        as_json: JsonOption = False,
    ) -> None:
        """Run a failure's trials in this environment, anew, and tell whether each did what is declared."""
        import sys

        from repro.catalog import find
        from repro.cells.cache import Cache
        from repro.cells.releases import SelectionError
        from repro.cells.spec import python_of
        from repro.matrix import plan as planning
        from repro.matrix.attempt import Setting
        from repro.matrix.command import execute, limits, scope_of, trial_set_of

        chosen = planning.Chosen((find(failure),), trial_set_of(trial_set), scope_of(scope), tuple(trial or ()))
        bounds = limits(trial_seconds, trial_memory)
        try:
            python = python_of(environment or Path(sys.executable))
        except SelectionError as error:
            raise Stop(str(error), WRONG_USAGE) from None
        name = f"environment {environment}" if environment else "this environment"
        [planned] = planning.plan(
            [planning.Candidate(name, python=python)], chosen, results, cache=Cache.default(), again=True
        )
        if planned.trouble:
            raise Stop(str(planned.trouble)) from None
        known = {item.id for item in planned.trials}
        if unknown := [name for name in trial or () if name not in known]:
            raise Stop(f"no trial {unknown[0]} in the {trial_set} set of {failure} here", WRONG_USAGE)
        if not planned.trials:
            raise Stop("no trial is in that set and scope", WRONG_USAGE)
        _, workers = planning.sharing(1)
        setting = Setting(results, bounds, min(workers, len(planned.trials)), chosen.trial_set)
        execute([planned], chosen, setting, jobs=1, again=True, as_json=as_json, own_interpreter=not environment)
