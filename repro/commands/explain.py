"""`repro explain`: what a peak is made of, with the numbers put in."""

from __future__ import annotations

from collections.abc import Callable
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
    function = law_of(failure)
    if function is None:
        raise Stop(f"{failure.id} has no law: its symptom is not a matter of bytes", WRONG_USAGE)
    try:
        return function(configuration)
    except ValueError as error:
        raise Stop(f"no law for this configuration: {error}", WRONG_USAGE) from None
    except ImportError as error:
        raise Stop(f"clips of differing lengths are drawn with numpy, which is not here: {error}") from None


def law_of(failure: Failure) -> Callable[[Configuration], Law] | None:
    """Return the law beside a failure's declaration: the function `law` in its catalogue file, of a configuration."""
    import sys

    catalogued = [
        loaded
        for name, loaded in sys.modules.items()
        if name.startswith("repro.catalog.") and getattr(loaded, "FAILURE", None) is failure
    ]
    for candidate in (*catalogued, sys.modules[failure.observe.__module__]):
        function: Callable[[Configuration], Law] | None = getattr(candidate, "law", None)
        if callable(function):
            return function
    return None
