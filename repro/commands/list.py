"""`repro list`: what is in the catalogue."""

from __future__ import annotations

import typer

from repro.commands import JsonOption


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("list")
    def list_failures(as_json: JsonOption = False) -> None:
        """List the known failures, with their claims and factors counted."""
        from repro.catalog import failures
        from repro.show import terminal

        rows = [
            {
                "failure": failure.id,
                "title": failure.title,
                "factors": len(failure.factors),
                "claims": len(failure.claims),
                "retired": failure.retired,
            }
            for failure in failures().values()
        ]
        if as_json:
            terminal.print_json(rows)
            return
        from rich.table import Table

        table = Table("failure", "what happens", "factors", "claims", box=None, pad_edge=False)
        for row in rows:
            title = f"{row['title']} (retired: {row['retired']})" if row["retired"] else str(row["title"])
            table.add_row(str(row["failure"]), title, str(row["factors"]), str(row["claims"]))
        terminal.out().print(table)
