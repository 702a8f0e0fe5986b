"""`repro census`: which models lose or break gradients under gradient checkpointing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from repro.commands import COULD_NOT_RUN, DEFAULT_RESULTS, NOT_AS_DECLARED, WRONG_USAGE, JsonOption, ResultsOption, Stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("census")
    def census(
        speech: Annotated[bool, typer.Option("--speech", help="Every class of every speech model (default).")] = False,
        everything: Annotated[bool, typer.Option("--all", help="Besides, the other models, by model type.")] = False,
        model: Annotated[
            list[str] | None, typer.Option("--model", metavar="TYPE", help="Every class of this model; repeatable.")
        ] = None,
        against: Annotated[
            str | None, typer.Option("--against", metavar="VERSION", help="Compare with this release's stored results.")
        ] = None,
        environment: Annotated[
            Path | None, typer.Option("--environment", metavar="PATH", help="Virtual environment or Python to run in.")
        ] = None,
        fresh: Annotated[bool, typer.Option("--fresh", help="Run again what has stored results.")] = False,
        jobs: Annotated[int, typer.Option("--jobs", min=1, help="Models at a time; needs pytest-xdist.")] = 2,
        seconds: Annotated[float, typer.Option("--seconds", min=1, help="Limit of one class, in seconds.")] = 60.0,
        gibibytes: Annotated[float, typer.Option("--gib", min=0.5, help="Memory limit of one class, in GiB.")] = 4.0,
        results: ResultsOption = DEFAULT_RESULTS,
        as_json: JsonOption = False,
    ) -> None:
        """Compare every model's gradients with and without checkpointing, reentrant and not.

        Families with stored results for the installed release are not run again. Exit code 1 with --against: a model
        that was equal there has a fault here.
        """
        from repro.census import compare, desk
        from repro.show import terminal

        if speech + everything + bool(model) > 1:
            raise Stop("choose one of --speech, --all and --model", WRONG_USAGE)
        records = desk.stored(results)
        if against and against not in compare.releases(records):
            known = ", ".join(compare.releases(records)) or "none"
            raise Stop(f"no census of transformers {against} in {results} (there: {known}); run it there first")
        try:
            where = desk.environment(environment)
            wanted = _wanted(where, records, everything=everything, models=model or [])
            done = set() if fresh else desk.finished(records, where.transformers, every_class=bool(model))
            left = tuple(family for family in wanted if family not in done)
            terminal.say(f"transformers {where.transformers}: {len(wanted)} model families, {len(left)} to run")
            desk.run(where, desk.Plan(left, bool(model), jobs, seconds, gibibytes), results)
        except desk.CensusError as error:
            raise Stop(str(error), COULD_NOT_RUN) from error
        except KeyboardInterrupt:
            raise Stop("interrupted. What was judged is stored; the same command goes on from there.", 130) from None
        records = desk.stored(results)
        rows: list[dict[str, Any]] = [r for r in compare.rows(records, where.transformers) if r["family"] in wanted]
        if against:
            rows = compare.against(rows, [r for r in compare.rows(records, against) if r["family"] in wanted])
        if as_json:
            terminal.print_json(rows)
        else:
            _show(rows, against)
        if against and any(row["change"] == "new fault" for row in rows):
            raise typer.Exit(NOT_AS_DECLARED)


def _wanted(where: Any, records: Any, *, everything: bool, models: list[str]) -> tuple[str, ...]:
    from repro.census import desk

    if models:
        return tuple(dict.fromkeys(f for name in models for f in desk.families_of(name, where, records)))
    # Speech first: it is what a user waits for.
    others = tuple(family for family in where.families if family not in where.speech) if everything else ()
    return (*where.speech, *others)


def _show(rows: list[dict[str, Any]], against: str | None) -> None:
    from rich.table import Table

    from repro.census import desk, verdicts
    from repro.show import terminal

    out = terminal.out()
    if against:
        # What is new and sound, or gone, is no news about a fault: it is counted below.
        quiet = ("same", "added", "removed")
        shown = [
            r for r in rows if r["change"] not in quiet or (r["change"] == "added" and r["verdict"] in verdicts.FAULTS)
        ]
    else:
        shown = [row for row in rows if row["verdict"] != verdicts.EQUAL]
    columns = ["model", "class", "reentrant", "verdict", *([f"in {against}"] if against else []), "detail"]
    table = Table(*columns, box=None, pad_edge=False)
    for row in sorted(shown, key=lambda row: (str(row["verdict"]), str(row["model"]), str(row["class"]))):
        before = [str(row["against"])] if against else []
        kind = "yes" if row["use_reentrant"] else "no"
        table.add_row(row["model"], row["class"], kind, row["verdict"], *before, row["detail"][:240])
    if shown:
        out.print(table)
    counted = desk.summary([row for row in rows if row.get("change") != "removed"])
    out.print(
        f"{counted['classes']} classes of {counted['model_types']} model types, "
        f"{counted['model_types_built']} types built"
    )
    for name, count in counted["verdicts"].items():
        out.print(f"  {count:5} {name}")
    if against:
        changes = Counter(str(row["change"]) for row in rows)
        out.print(f"Against {against}: " + ", ".join(f"{count} {name}" for name, count in sorted(changes.items())))
    lacking = sorted({str(row["lacks"]) for row in rows if row["lacks"]})
    if lacking:
        out.print(f"Not installed, and needed by models that could not be built: {', '.join(lacking)}")
        out.print("They come with the extra `census` (timm needs a torchvision that fits torch)", markup=False)
