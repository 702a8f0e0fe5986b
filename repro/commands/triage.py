"""`repro triage`: from a pasted traceback to the failure it is, and to what cures it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from repro.commands import DEFAULT_RESULTS, DONE, NOT_AS_DECLARED, WRONG_USAGE, JsonOption, Stop

if TYPE_CHECKING:
    from repro.triage.advice import Advice
    from repro.triage.answer import Answer
    from repro.triage.versions import Versions

INDENT = "    "


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("triage")
    def triage(
        file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="The text; standard input by default.")] = "-",
        environment: Annotated[
            Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
            typer.Option(metavar="PATH", help="Your Python or virtual environment; it is read, not run."),
        ] = None,
        requirements: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(metavar="FILE", help="What you have installed: a freeze, requirements.txt or a lock file."),
        ] = None,
        results: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(metavar="DIR", help="Results to answer from, instead of those that come along."),
        ] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Say which known failure a traceback shows, whether your versions have it, and what cures it there.

        Takes text as it was copied: from a terminal, a log, a notebook, a page in HTML. Ends with 0 for a known
        failure, with 1 for none of ours.
        """
        from repro.catalog import failures
        from repro.show import terminal
        from repro.triage import answer as answers

        text = _text(file)
        known = _versions(environment, requirements)
        answer = answers.triage(text, failures().values(), known, _places(results))
        if as_json:
            terminal.print_json(answer.as_json())
        else:
            for line in describe(answer):
                typer.echo(line)
        raise typer.Exit(DONE if answer.match else NOT_AS_DECLARED)


def _places(results: Path | None) -> list[Path]:
    """Return the results to answer from: those named, else those that come along, else those of this directory."""
    from repro.triage.history import REFERENCE

    if results is not None:
        return [results]
    return [place for place in (REFERENCE, DEFAULT_RESULTS) if place.is_dir()][:1]


def _text(file: str) -> str:
    from repro.triage.reading import UnreadableError, read

    try:
        if file == "-":
            if sys.stdin.isatty():
                typer.echo("Paste the text, then press Ctrl-D (on Windows: Ctrl-Z, Enter).", err=True)
            return read(sys.stdin.buffer)
        with Path(file).open("rb") as stream:
            return read(stream)
    except UnreadableError as error:
        raise Stop(f"{'standard input' if file == '-' else file}: {error}", WRONG_USAGE) from error
    except OSError as error:
        raise Stop(f"cannot read {file}: {error.strerror or error}", WRONG_USAGE) from error


def _versions(environment: Path | None, requirements: Path | None) -> Versions | None:
    from repro.triage import environment as environments
    from repro.triage import requirements as lists

    known = None
    try:
        if requirements is not None:
            known = lists.read(requirements)
        if environment is not None:
            installed = environments.read(environment)
            known = installed.over(known) if known else installed
    except (lists.RequirementsError, environments.NoEnvironmentError) as error:
        raise Stop(str(error), WRONG_USAGE) from error
    return known


def describe(answer: Answer) -> Iterable[str]:
    """Yield the answer as lines of plain text, the most important first. Nothing in them steers a terminal."""
    if answer.match is None:
        yield from _unknown(answer)
    else:
        yield from _known(answer)
    for note in answer.notes:
        yield f"Note: {note}."


def _known(answer: Answer) -> Iterable[str]:
    match = answer.match
    assert match is not None
    yield f"{match.failure.id}: {match.failure.title}"
    yield f"{INDENT}{match.failure.summary}"
    if len(match.failure.symptoms) > 1:
        yield f"{INDENT}What you see of it: {match.symptom.outcome}; {match.symptom.says}."
    yield ""
    yield f"How sure: {match.confidence:.0%}"
    for item in match.evidence:
        sign = "-" if item.weight < 0 else ("+" if item.found else "?")
        yield f"{INDENT}{sign} {item.says}{'' if item.found else ' (not seen in this text)'}"
    yield ""
    has = {True: "yes", False: "no", None: "not known"}[answer.affected.answer]
    yield f"Your versions: {_versions_line(answer)}"
    yield f"Do they have it: {has} ({answer.affected.because})"
    yield from _memory(answer)
    yield from _section("What cures it there, measured:", answer.cures, with_code=True)
    yield from _section("What depends on the release:", answer.depends, with_code=False)
    yield from _section("What does not help, or is not so, measured:", answer.refuted, with_code=False)
    if answer.affected.near and not (answer.cures or answer.refuted or answer.depends):
        yield "No advice has a verdict there yet."
    yield ""
    yield f"To see it for yourself: {answer.prove}"


def _unknown(answer: Answer) -> Iterable[str]:
    if answer.raised is None and answer.nearest is None:
        if answer.out_of_memory is None:
            yield "No Python exception was found in this text. Paste all of it, the last line above all."
        else:
            yield "This is not one of the known failures."
    elif answer.rivals:
        yield f"It may be one of {len(answer.rivals)} known failures; this text does not tell which."
    else:
        yield "This is not one of the known failures."
    if answer.raised is not None:
        first = answer.raised.message.split("\n")[0][:300]
        yield f"It raises {answer.raised.type or 'an exception whose name was cut off'}{': ' + first if first else ''}"
    yield from _memory(answer)
    if answer.rivals:
        for rival in answer.rivals:
            yield f"{rival.failure.id} ({rival.failure.title}), at {rival.confidence:.0%}"
            yield f"{INDENT}So far {rival.difference or 'nothing speaks against it'}."
        yield "Paste the whole output, from the first line of the traceback on, with the lines that name the model."
    elif answer.nearest is not None:
        failure = answer.nearest.failure
        yield f"Nearest: {failure.id} ({failure.title}), at {answer.nearest.confidence:.0%}"
        yield f"{INDENT}The difference: {answer.nearest.difference or 'what the text shows is not enough to tell'}."
        if answer.raised is None or not answer.raised.frames:
            yield "The traceback is missing: paste all, from `Traceback (most recent call last)` to the last line."
    if answer.versions.found:
        yield f"Versions: {_versions_line(answer)}"


def _versions_line(answer: Answer) -> str:
    found = answer.versions
    return ", ".join(f"{name} {version} ({found.source[name]})" for name, version in found.found.items()) or (
        "not known; name --environment or --requirements"
    )


def _memory(answer: Answer) -> Iterable[str]:
    memory = answer.out_of_memory
    if memory is None:
        return
    where = f"the {memory.device}'s memory"
    when = f"in {memory.phase}, {memory.doing}" if memory.phase else "when, the text does not show: no frame tells"
    callback = " (in an evaluation that a callback started)" if memory.from_callback else ""
    yield f"Out of memory: {where}; {when}{callback}"
    yield f"{INDENT}{memory.because}."
    if memory.wanted_bytes is not None:
        of = f" of {memory.capacity_bytes / 2**30:.2f} GiB in all" if memory.capacity_bytes else ""
        yield f"{INDENT}It asked for {memory.wanted_bytes / 2**20:.1f} MiB more{of}."


def _section(title: str, advice: tuple[Advice, ...], *, with_code: bool) -> Iterable[str]:
    if not advice:
        return
    yield ""
    yield title
    for item in advice:
        yield f"{INDENT}{item.says} [{item.claim.id}: {item.verdict}]"
        if item.claim.kind == "advice":
            yield f"{INDENT}{INDENT}measured: {item.detail}"
        if with_code and item.claim.code:
            for line in item.claim.code.strip("\n").split("\n"):
                yield f"{INDENT}{INDENT}{line}"
