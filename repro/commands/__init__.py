"""The command line: one module per command, named like it, with `register(app)`; a module added here is found.

A command module imports only typer and the standard library at its top, and what it works with inside its function, so
that every command starts at once. Exit codes: 0 done and as expected; 1 something is not as declared; 2 wrong usage;
3 could not run.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

DONE, NOT_AS_DECLARED, WRONG_USAGE, COULD_NOT_RUN = 0, 1, 2, 3

ResultsOption = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Directory of result files.", show_default=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to standard output, for programs.")]
DEFAULT_RESULTS = Path(".repro/results")


class Stop(Exception):  # noqa: N818 - it ends a command, and is not always an error of the program
    """Ends a command with a message on standard error and an exit code."""

    def __init__(self, message: str, code: int = COULD_NOT_RUN) -> None:
        super().__init__(message)
        self.code = code


def require_observations(records: Iterable[Mapping[str, Any]], of: Collection[str], results: Path) -> None:
    """Stop when none of the records observes one of these failures: what did not run is never shown as done."""
    if not any(record["kind"] == "observation" and record["failure"] in of for record in records):
        which = f"observation of {next(iter(of))}" if len(of) == 1 else "observation of any known failure"
        raise Stop(f"{results} holds no {which}: run `repro run` or `repro matrix` first, or name --results.")


def build_app(only: str | None = None) -> typer.Typer:
    """Assemble the command line from the modules of this package.

    `only` names a command: its module alone is loaded then, which is what makes a single command start at once. With
    any other word, or none, every module is loaded, so that the help and the nearest name know all of them.
    """
    app = typer.Typer(
        name="repro",
        help="Reproduces training failures of speech models on real transformers releases, and measures what each "
        "cure is worth.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, help="Print the version and exit.", callback=_print_version)
        ] = False,
    ) -> None:
        """Hold the options of the program itself; its presence makes typer expect a command even if there is one."""

    names = [module.name for module in pkgutil.iter_modules(__path__)]
    for name in [only] if only in names else names:
        importlib.import_module(f"{__name__}.{name}").register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("trainer-repro"))
        raise typer.Exit
