"""`repro script`: a failure, or its cure, as one file that anybody can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro.commands import COULD_NOT_RUN, WRONG_USAGE, Stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("script")
    def script_command(
        failure: Annotated[str, typer.Argument(help="Id of a failure; `repro list` shows them.")],
        configuration: Annotated[
            str,
            typer.Option(
                metavar="LEVELS",
                help="factor=level, comma-separated: what differs from the reported run, or from `plain` put first.",
            ),
        ] = "",
        claim: Annotated[str, typer.Option(metavar="ID", help="Follow this advice.")] = "",
        transformers: Annotated[
            str, typer.Option(metavar="VERSION", help="A stored release. Default: the newest in which it fails.")
        ] = "",
        results: Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="Directory of result files. Default: those that come with the package."),
        ] = None,
        out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there, not to standard output.")] = None,
    ) -> None:
        """Write a standalone reproduction: pins, a tiny model, made-up data, the real Trainer. `uv run` runs it.

        The script prints what it expected and what it saw, and ends with 0 when they are the same.
        """
        from repro.catalog import find
        from repro.script.choose import ChoiceError, choose
        from repro.script.standalone import script
        from repro.show import terminal
        from repro.store.reader import read
        from repro.store.reference import REFERENCE

        entry = find(failure)
        if entry.script is None:
            raise Stop(f"{entry.id} has no standalone script: `repro run {entry.id}` shows it.", COULD_NOT_RUN)
        stored = read(results or REFERENCE, containing=entry.id)
        try:
            chosen = choose(entry, stored.records, configuration=configuration, claim=claim, transformers=transformers)
        except ChoiceError as error:
            raise Stop(str(error), WRONG_USAGE) from None
        text = script(chosen)
        if out is None:
            print(text, end="")
            return
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Stop(f"cannot write {out}: {error.strerror}", COULD_NOT_RUN) from None
        terminal.say(f"expected: {chosen.expected}. Run it: uv run {out}")
