"""`repro report`: the pages as a static site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro.commands import COULD_NOT_RUN, DEFAULT_RESULTS, ResultsOption, Stop, require_observations


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("report")
    def report(
        results: ResultsOption = DEFAULT_RESULTS,
        out: Annotated[Path, typer.Option(metavar="DIR", help="Where the site goes.")] = Path("site"),
        stored_reference: Annotated[
            bool, typer.Option("--reference", help="Show the reference results that come with the package.")
        ] = False,
    ) -> None:
        """Write a static site of all failures, claims and releases from stored results. Runs nothing.

        Open its index.html from disk, or serve the directory with any web server.
        """
        from repro.catalog import failures
        from repro.show import terminal
        from repro.show.pages import reference
        from repro.show.site.build import SiteError, build
        from repro.store.reader import read
        from repro.store.reference import REFERENCE

        source = REFERENCE if stored_reference else results
        stored = read(source)
        for damage in stored.damage:
            terminal.say(f"skipped a line that is no record: {damage}")
        require_observations(stored.records, failures(), source)
        try:
            pages = build(reference(failures().values(), stored.records), out)
        except SiteError as error:
            raise Stop(str(error), COULD_NOT_RUN) from None
        terminal.say(f"{len(pages)} pages")
        print(pages[0])
