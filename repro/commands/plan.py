"""`repro plan`: what a nightly is to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from repro.commands import WRONG_USAGE, JsonOption, Stop

if TYPE_CHECKING:
    from repro.nightly.plan import Entry


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("plan")
    def plan_command(
        transformers: Annotated[
            list[str] | None,
            typer.Option(metavar="LIST", help="Releases, as `repro matrix` takes them. Default: all."),
        ] = None,
        failures: Annotated[
            str, typer.Option(metavar="LIST", help="Comma-separated failures; all when left out.")
        ] = "",
        trial_set: Annotated[str, typer.Option(metavar="full|reference|budgeted", help="Which trials.")] = "full",
        torch: Annotated[
            str, typer.Option(metavar="LIST", help="torch for the cells, as `repro matrix` takes it.")
        ] = "",
        python: Annotated[str, typer.Option(metavar="3.N", help="Python for the cells.")] = "",
        device: Annotated[str, typer.Option(metavar="cpu|cuda", help="The device that the cells will have.")] = "cpu",
        prereleases: Annotated[bool, typer.Option("--prereleases", help="Take pre-releases too.")] = False,
        main: Annotated[
            bool, typer.Option("--main", help="Add transformers' main branch, in an environment called `main`.")
        ] = False,
        gpu: Annotated[
            str | None,
            typer.Option(
                metavar="LABEL",
                help="Add the newest of these releases on the GPU whose runner has this label, the reference set. "
                "With an empty label it is planned as skipped: no runner is declared.",
            ),
        ] = None,
        shard: Annotated[str, typer.Option(metavar="I/N", help="Only this part: 1/4 is the first of four.")] = "",
        commands: Annotated[
            bool, typer.Option("--commands", help="Print one `repro matrix` command a line, for a shell.")
        ] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Say what is to run, cell by cell: for a matrix of CI jobs, an array job, or `repro ledger`. Runs nothing."""
        from repro.cells.releases import SelectionError, table
        from repro.matrix.command import chosen_failures, trial_set_of
        from repro.matrix.plan import Chosen
        from repro.nightly import plan as planning
        from repro.show import terminal

        if device not in ("cpu", "cuda"):
            raise Stop(f"no device {device!r}; there is: cpu, cuda", WRONG_USAGE)
        if as_json and commands:
            raise Stop("--json and --commands exclude each other: the answer is one or the other", WRONG_USAGE)
        if gpu is not None and shard:
            raise Stop("--gpu and --shard exclude each other: the GPU's job is no shard", WRONG_USAGE)
        chosen = Chosen(chosen_failures(failures), trial_set_of(trial_set))
        torches = [item.strip() for item in torch.split(",") if item.strip()]
        try:
            part = planning.shard(shard or "1/1")
            asked = transformers or ["all"]
            whole = planning.plan(
                asked,
                chosen,
                table(),
                torch=torches,
                python=python,
                device=device,
                prereleases=prereleases,
                main=main,
            )
            apart = None if gpu is None else planning.on_gpu(asked, chosen, table(), gpu, prereleases=prereleases)
        except (SelectionError, planning.PlanError) as error:
            raise Stop(str(error), WRONG_USAGE) from None
        entries = part.part(whole)
        if as_json:
            terminal.print_json(planning.as_matrix(entries, apart))
        elif commands:
            for entry in entries:
                print(f"repro matrix {entry.arguments}")
        else:
            _print((*entries, apart) if apart else entries)
        if apart:
            terminal.say(f"apart from these, {apart.name}: {apart.skipped or f'{apart.trials} trials'}")
        trials = sum(entry.trials for entry in entries)
        among = f", of {len(whole)} in all parts" if shard else ""
        terminal.say(f"{terminal.counted(trials, 'trial')} in {terminal.counted(len(entries), 'cell')}{among}")


def _print(entries: Sequence[Entry]) -> None:
    from rich.table import Table

    from repro.show import terminal

    view = Table("cell", "torch", "python", "as of", "device", "trials", box=None, pad_edge=False)
    for entry in entries:
        texts = (entry.torch or "newest", entry.python or "-", entry.exclude_newer or "-", entry.device)
        view.add_row(entry.name, *texts, str(entry.trials))
    terminal.out().print(view)
