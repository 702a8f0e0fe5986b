"""`repro releases`: which releases can be asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from repro.commands import WRONG_USAGE, JsonOption, Stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("releases")
    def releases(
        transformers: Annotated[
            list[str] | None,
            typer.Option(help="Versions, ranges ('>=4.50,<5'), `latest` or `all`; all that are known when left out."),
        ] = None,
        prereleases: Annotated[bool, typer.Option("--prereleases", help="Take pre-releases too.")] = False,
        refresh: Annotated[
            bool, typer.Option("--refresh", help="Bring the table of releases up to date from the index first.")
        ] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Show the transformers releases that cells can be built for, with their dates."""
        from repro.cells import releases as known
        from repro.show import terminal

        if refresh:
            _refresh()
        table = known.table()
        try:
            chosen = known.select(transformers or [f">={known.FIRST_SUPPORTED}"], table, prereleases=prereleases)
        except known.SelectionError as error:
            raise Stop(str(error), WRONG_USAGE) from None
        if not transformers:
            chosen = [r for r in table.of("transformers") if prereleases or not r.prerelease]
        rows = [
            {
                "version": release.version,
                "uploaded": release.uploaded.isoformat(),
                "yanked": release.yanked,
                "prerelease": release.prerelease,
                "requires_python": release.requires_python,
            }
            for release in chosen
        ]
        if as_json:
            terminal.print_json(rows)
            return
        from rich.table import Table

        view = Table("transformers", "uploaded", "python", "", box=None, pad_edge=False)
        for row in rows:
            notes = [word for word in ("yanked", "prerelease") if row[word]]
            view.add_row(str(row["version"]), str(row["uploaded"]), str(row["requires_python"]), " ".join(notes))
        terminal.out().print(view)
        terminal.say(f"{len(rows)} releases, as of {table.refreshed}")


def _refresh() -> None:
    import datetime

    from repro.cells import refresh as index
    from repro.cells import releases as known
    from repro.show import terminal

    before = known.table() if known.PACKAGED.exists() else None
    try:
        fresh = index.fetch(datetime.datetime.now(datetime.timezone.utc).date())
    except index.IndexTroubleError as error:
        raise Stop(str(error)) from None
    path = known.refreshed_path()
    index.write(fresh, path)
    known.table.cache_clear()
    for package, releases in fresh.packages.items():
        old = {release.version for release in before.of(package)} if before else set()
        new = [release.version for release in releases if release.version not in old]
        terminal.say(f"{package}: {len(releases)} releases, {len(new)} new{': ' + ', '.join(new[-8:]) if new else ''}")
    terminal.say(f"wrote {path}")
