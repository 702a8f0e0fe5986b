"""`repro explain`: what a peak is made of, with the numbers put in."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from repro.commands import WRONG_USAGE, JsonOption, Stop

if TYPE_CHECKING:
    from repro.memory.laws import Law
    from repro.vocabulary import Configuration, Failure, Level


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("explain")
    def explain(
        failure: Annotated[str, typer.Argument(help="Id of a failure whose peak has a law.")],
        levels: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="FACTOR=LEVEL", help="Change the reported configuration; may be repeated."),
        ] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Print the law of a failure's peak: its terms, with formulas, numbers and bytes."""
        from repro.show import terminal

        found = _find(failure)
        configuration = _configuration(found, levels or [])
        law = _law(found, configuration)
        if as_json:
            document = {"failure": found.id, "configuration": dict(configuration), "bytes": law.bytes, **asdict(law)}
            terminal.print_json(document)
            return
        changed = found.deviations(configuration)
        said = ", ".join(f"{name}={level}" for name, level in changed.items()) or "the plain run"
        terminal.out().print(f"{found.id}: {said}\n{law}", markup=False)


def _find(name: str) -> Failure:
    from repro.catalog import UnknownFailureError, find

    try:
        return find(name)
    except UnknownFailureError as error:
        raise Stop(str(error), WRONG_USAGE) from error


def _configuration(failure: Failure, settings: list[str]) -> Configuration:
    changes: dict[str, Level] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign:
            raise Stop(f"--set {setting}: write FACTOR=LEVEL", WRONG_USAGE)
        changes[name] = int(text) if text.lstrip("-").isdigit() else text
    try:
        return failure.configuration(**{**dict(failure.reported), **changes})
    except ValueError as error:
        raise Stop(str(error), WRONG_USAGE) from error


def _law(failure: Failure, configuration: Configuration) -> Law:
    """Find the law beside the failure's declaration: a function `law` in its catalogue file, of a configuration."""
    import sys

    module = sys.modules[failure.observe.__module__]
    catalogued = [
        loaded
        for name, loaded in sys.modules.items()
        if name.startswith("repro.catalog.") and getattr(loaded, "FAILURE", None) is failure
    ]
    for candidate in (*catalogued, module):
        function = getattr(candidate, "law", None)
        if callable(function):
            law: Law = function(configuration)
            return law
    raise Stop(f"{failure.id} has no law: its symptom is not a matter of bytes", WRONG_USAGE)
