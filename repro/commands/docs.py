"""`repro docs`: the pages as Markdown, from the reference results; and the reference results themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro.commands import NOT_AS_DECLARED, WRONG_USAGE, Stop, require_observations


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("docs")
    def docs(
        out: Annotated[Path, typer.Option(metavar="DIR", help="Where the Markdown goes.")] = Path("docs"),
        results: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR",
                help="Directory of result files. Default: the reference results that come with the package.",
            ),
        ] = None,
        update_reference: Annotated[
            bool,
            typer.Option(
                "--update-reference", help="First take over what --results says into the package's reference results."
            ),
        ] = False,
        check: Annotated[
            bool, typer.Option("--check", help="Write nothing; end with 1 when the files are not what results say.")
        ] = False,
    ) -> None:
        """Write one Markdown page per failure and an index, from stored results. Runs nothing."""
        from repro.catalog import failures
        from repro.show import markdown, terminal
        from repro.show.pages import reference
        from repro.store.reader import read
        from repro.store.reference import REFERENCE, update

        catalogue = failures().values()
        if update_reference:
            if results is None:
                raise Stop("--update-reference takes over results: say which, with --results DIR", WRONG_USAGE)
            if check:
                raise Stop("--check writes nothing, and --update-reference does: choose one", WRONG_USAGE)
            for path in update(catalogue, results):
                terminal.say(f"wrote {path}")
        source = REFERENCE if results is None or update_reference else results
        stored = read(source)
        for damage in stored.damage:
            terminal.say(f"skipped a line that is no record: {damage}")
        require_observations(stored.records, failures(), source)
        facts = reference(catalogue, stored.records)
        if check:
            wrong = markdown.out_of_step(facts, out)
            if wrong:
                names = ", ".join(wrong)
                raise Stop(f"{out} is not what the results say ({names}): run `repro docs`", NOT_AS_DECLARED)
            print(f"{out} is what the results say")
            return
        try:
            written = markdown.write(facts, out)
        except OSError as error:
            raise Stop(f"cannot write {out}: {error.strerror}. Choose another directory with --out.") from None
        for path in written:
            print(path)
