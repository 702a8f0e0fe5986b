"""`repro minimize`: the smallest set of settings that still fails, in this environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.commands import COULD_NOT_RUN, DEFAULT_RESULTS, NOT_AS_DECLARED, WRONG_USAGE, JsonOption, ResultsOption, Stop

if TYPE_CHECKING:
    from repro.vocabulary import Configuration, Failure


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("minimize")
    def minimize(
        failure: Annotated[str, typer.Argument(metavar="FAILURE", help="Id of a failure; `repro list` names them.")],
        configuration: Annotated[
            str, typer.Option(metavar="JSON", help="Start from these levels: an object of factor to level.")
        ] = "",
        arguments: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Start from training arguments, a JSON object.")
        ] = None,
        scope: Annotated[str, typer.Option(metavar="model|trainer", help="Default: the scope of the report.")] = "",
        environment: Annotated[
            Path | None,
            typer.Option(metavar="PATH", help="A virtual environment, or its python, instead of this one."),
        ] = None,
        results: ResultsOption = DEFAULT_RESULTS,
        trial_seconds: Annotated[float, typer.Option(min=0.1, help="Limit of a trial.")] = 120.0,
        as_json: JsonOption = False,
    ) -> None:
        """Find the smallest set of settings that still fails; starts from the report's own unless told otherwise.

        Ends with 1 when the start does not fail here, or the smallest set does not fail every time.
        """
        import sys

        from repro.catalog import find
        from repro.cells.releases import SelectionError
        from repro.cells.spec import python_of
        from repro.matrix.command import scope_of
        from repro.matrix.run import check_writable
        from repro.minimize import start as starting
        from repro.show import terminal
        from repro.store.writer import ResultsError

        known = find(failure)
        begin, read = _start(known, configuration, arguments)
        at = scope_of(scope) or known.reported_scope
        if not known.allows(begin):
            reasons = "; ".join(c.says for c in known.constraints if not c.allows(begin))
            raise Stop(f"this combination is never run: {reasons}", WRONG_USAGE)
        check_writable(results)
        for line in read["told"]:
            terminal.say(line)
        terminal.say("importing torch and transformers, then running trials ...")
        try:
            python = python_of(environment or Path(sys.executable))
            found = starting.minimize(known, begin, at, python, results, trial_seconds)
        except SelectionError as error:
            raise Stop(str(error), WRONG_USAGE) from None
        except (starting.MinimizeError, ResultsError) as error:
            raise Stop(f"the minimization ended early:\n{error}", COULD_NOT_RUN) from None
        found |= {"arguments": {name: read[name] for name in ("taken", "rounded", "ignored")}}
        if as_json:
            terminal.print_json(found)
        else:
            _show(found)
        _end(known, found)


def _start(failure: Failure, configuration: str, arguments: Path | None) -> tuple[Configuration, dict[str, Any]]:
    """Return the configuration to start from, and what was made of a file of arguments."""
    from dataclasses import asdict

    from repro.minimize import arguments as reading

    nothing: dict[str, Any] = {"taken": {}, "rounded": {}, "ignored": {}, "told": []}
    if configuration and arguments:
        raise Stop("start from --configuration or from --arguments, not from both", WRONG_USAGE)
    if arguments:
        read = reading.read(failure, _object(_text(arguments), str(arguments)))
        told = [f"taken: {name} -> {level}" for name, level in read.taken.items()]
        told += [f"{name}: {how}" for name, how in read.rounded.items()]
        told += [f"ignored: {name} ({why})" for name, why in read.ignored.items()]
        found = asdict(read)
        return read.configuration, {
            **{name: dict(found[name]) for name in ("taken", "rounded", "ignored")},
            "told": told,
        }
    if configuration:
        try:
            return failure.configuration(**_object(configuration, "--configuration")), nothing
        except ValueError as error:
            raise Stop(str(error), WRONG_USAGE) from None
    return failure.reported, nothing


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Stop(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", WRONG_USAGE) from None


def _object(text: str, where: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text)
    except ValueError as error:
        raise Stop(f"{where} is not JSON: {error}", WRONG_USAGE) from None
    if not isinstance(value, dict):
        raise Stop(f"{where} has to be a JSON object, from name to value", WRONG_USAGE)
    return value


def _show(found: dict[str, Any]) -> None:
    print(f"transformers {found['transformers']}, torch {found['torch']}, {found['device']}, {found['scope']} level")
    for number, test in enumerate(found["tests"], 1):
        print(
            f"  {number:2}. {_settings(test['settings'])}: {test['outcome']} ({test['seconds']:.2f} s, {test['why']})"
        )
    print(f"{len(found['tests'])} trials in {found['seconds']:.1f} s")
    if found["minimal"] is not None:
        print(f"smallest set that still gives {found['outcome']}: {_settings(found['minimal'])}")
        for other in found["weaker"]:
            print(f"  as does: {_settings(other)}")


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={level}" for name, level in settings.items()) or "the plain run"


def _end(failure: Failure, found: dict[str, Any]) -> None:
    from repro.vocabulary import UNFINISHED

    if found["outcome"] in UNFINISHED:
        raise Stop(f"the start could not be run: {found['outcome']} {found['detail']}".rstrip(), COULD_NOT_RUN)
    if found["minimal"] is None:
        raise Stop(
            f"nothing to minimize: {_settings(found['start'])} trains with transformers {found['transformers']}. "
            f"`repro frontier {failure.id}` finds the releases where it does not.",
            NOT_AS_DECLARED,
        )
    if found["again"] != found["outcome"]:
        raise Stop(
            f"not reliable: {_settings(found['minimal'])} gave {found['outcome']} first and {found['again']} when run "
            "again",
            NOT_AS_DECLARED,
        )
