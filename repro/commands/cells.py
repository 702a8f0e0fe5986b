"""`repro cells`: the environments that were built."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from repro.commands import NOT_AS_DECLARED, WRONG_USAGE, JsonOption, Stop


def register(app: typer.Typer) -> None:
    """Add the command and what it can do."""
    cells = typer.Typer(
        help="List, check and remove the cells: environments of a release, built by `repro matrix` and kept.",
        invoke_without_command=True,
        rich_markup_mode=None,
    )
    app.add_typer(cells, name="cells")

    @cells.callback()
    def list_cells(context: typer.Context, as_json: JsonOption = False) -> None:
        if context.invoked_subcommand is None:
            _list(as_json)

    @cells.command("check")
    def check_cells(
        ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These cells; all without.")] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Check that each cell's python runs and its versions are those it was built with. Exits with 1 otherwise."""
        from repro.cells.cache import Cache
        from repro.show import terminal

        cache = Cache.default()
        rows = [{"id": cached.id, "wrong": cache.check(cached)} for cached in _chosen(cache, ids)]
        if as_json:
            terminal.print_json(rows)
        else:
            for row in rows:
                terminal.out().print(f"{row['id']}  {row['wrong'] or 'good'}", markup=False)
        if bad := [row["id"] for row in rows if row["wrong"]]:
            raise Stop(
                f"{len(bad)} of {len(rows)} cells are damaged: repro cells remove {' '.join(bad)}", NOT_AS_DECLARED
            )

    @cells.command("remove")
    def remove_cells(
        ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="These cells.")] = None,
        everything: Annotated[bool, typer.Option("--all", help="Every cell.")] = False,
        unused_for: Annotated[
            float | None,
            typer.Option("--unused-for", metavar="DAYS", help="Every cell that was not used for so many days."),
        ] = None,
    ) -> None:
        """Remove cells, and what killed builds left behind. A cell in use is left alone. Results are never touched."""
        _remove(ids, everything, unused_for)


def _list(as_json: bool) -> None:
    from repro.cells.cache import Cache, disk, together
    from repro.show import terminal

    cache = Cache.default()
    found = cache.cells()
    rows: list[dict[str, Any]] = []
    for cached in found:
        use = disk(cached.directory)
        described = cached.document["described"]
        rows.append(
            {
                "id": cached.id,
                "cell": described["cell"],
                "transformers": described["transformers"],
                "torch": described["torch"],
                "python": described["python"],
                "device": described["device"],
                "exclude_newer": cached.document["spec"]["exclude_newer"],
                "built": cached.document["built"],
                "used": cached.used.isoformat(timespec="seconds"),
                "bytes": use.whole,
                "bytes_freed_by_removal": use.freed,
                "notes": cached.document["notes"],
                "directory": str(cached.directory),
            }
        )
    if as_json:
        terminal.print_json(rows)
        return
    from rich.table import Table

    view = Table("cell", "transformers", "torch", "python", "as of", "last used", box=None, pad_edge=False)
    view.add_column("size", justify="right")
    view.add_column("own", justify="right")
    for row in rows:
        texts = [str(row[key])[:10] if key == "used" else str(row[key]) for key in _COLUMNS]
        view.add_row(*texts, terminal_bytes(row["bytes"]), terminal_bytes(row["bytes_freed_by_removal"]))
    if rows:
        terminal.out().print(view)
    leftovers = cache.leftovers()
    total = together([*(cached.directory for cached in found), *leftovers])
    counted = terminal.counted(len(rows), "cell")
    terminal.say(f"{counted} in {cache.root}, together {terminal_bytes(total)} (shared files counted once)")
    if leftovers:
        terminal.say(f"{len(leftovers)} unfinished builds; `repro cells remove` removes those that nobody works on")


_COLUMNS = ("id", "transformers", "torch", "python", "exclude_newer", "used")


def terminal_bytes(size: int) -> str:
    """Return a size in MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _chosen(cache: Any, ids: list[str] | None) -> list[Any]:
    import difflib

    known = {cached.id: cached for cached in cache.cells()}
    known |= {cached.document["described"]["cell"]: cached for cached in known.values()}
    unknown = [name for name in ids or () if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.3)
        raise Stop(f"no cell {unknown[0]}.{f' Did you mean {near[0]}?' if near else ''}", WRONG_USAGE)
    return [known[name] for name in ids] if ids else cache.cells()


def _remove(ids: list[str] | None, everything: bool, unused_for: float | None) -> None:
    import datetime

    from repro.cells.cache import Cache, disk
    from repro.cells.locks import BusyError
    from repro.show import terminal

    cache = Cache.default()
    if ids:
        doomed = _chosen(cache, ids)
    elif everything or unused_for is not None:
        doomed = cache.cells()
    elif cache.leftovers():
        doomed = []
    else:
        raise Stop("name the cells to remove, or say --all or --unused-for DAYS (see `repro cells`)", WRONG_USAGE)
    if unused_for is not None:
        before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=unused_for)
        doomed = [cached for cached in doomed if cached.used < before]
    busy = freed = removed = 0
    for cached in doomed:
        size = disk(cached.directory).freed
        try:
            cache.remove(cached.id)
        except BusyError:
            terminal.say(f"{cached.id} is in use, and stays")
            busy += 1
            continue
        except OSError as error:
            raise Stop(f"cannot remove {cached.directory}: {error.strerror or error}") from None
        freed += size
        removed += 1
    leftovers = cache.remove_leftovers()
    terminal.say(f"removed {removed} cells and {leftovers} unfinished builds; {terminal_bytes(freed)} freed, at least")
    if busy:
        raise Stop(f"{busy} cells are in use by another process; try again when it is done")
