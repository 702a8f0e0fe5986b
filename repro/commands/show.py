"""`repro show`: one catalogue entry, whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from repro.commands import JsonOption
from repro.vocabulary import Failure


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("show")
    def show_failure(
        failure: Annotated[str, typer.Argument(help="Id of a failure; `repro list` shows them.")],
        as_json: JsonOption = False,
    ) -> None:
        """Show what is declared about a failure: symptoms, trigger, factors, claims, sources."""
        from repro.catalog import find
        from repro.show import terminal

        entry = find(failure)
        if as_json:
            terminal.print_json(described(entry))
        else:
            _print(entry)


def described(entry: Failure) -> dict[str, Any]:
    """Return a catalogue entry as JSON values."""
    return {
        "failure": entry.id,
        "title": entry.title,
        "summary": entry.summary,
        "retired": entry.retired,
        "symptoms": [
            {"outcome": s.outcome, "says": s.says, "exception": s.exception, "message": s.message}
            for s in entry.symptoms
        ],
        "trigger": entry.trigger.says,
        "reported": entry.deviations(entry.reported),
        "factors": [
            {"factor": f.name, "levels": list(f.levels), "says": f.says, "scopes": list(f.scopes)}
            for f in entry.factors
        ],
        "constraints": [constraint.says for constraint in entry.constraints],
        "claims": [
            {
                "claim": c.id,
                "kind": c.kind,
                "says": c.says,
                "source": c.source,
                "change": dict(c.change),
                "pin": dict(c.pin),
                "code": c.code,
            }
            for c in entry.claims
        ],
        "sources": [{"id": s.id, "says": s.says, "url": s.url} for s in entry.sources],
    }


def _print(entry: Failure) -> None:
    from rich.table import Table
    from rich.text import Text

    from repro.show import terminal

    out = terminal.out()

    def section(title: str, *columns: str) -> Table:
        out.print(Text(f"\n{title}", style="bold"))
        return Table(*columns, box=None, pad_edge=False, show_header=bool(columns))

    out.print(Text(entry.title, style="bold"))
    out.print(Text(entry.id + (f"   retired: {entry.retired}" if entry.retired else "")))
    out.print(Text(f"\n{entry.summary}"))
    table = section("Symptoms", "outcome", "error", "why")
    for symptom in entry.symptoms:
        error = f"{symptom.exception}: {symptom.message}" if symptom.exception else "no error: seen in the run's facts"
        table.add_row(Text(symptom.outcome), Text(error), Text(symptom.says))
    out.print(table)
    out.print(Text("\nTrigger, as declared", style="bold"))
    out.print(Text(entry.trigger.says))
    table = section("Factors (the first level is the plain run)", "factor", "levels", "reported", "what it is")
    for factor in entry.factors:
        levels = ", ".join(map(str, factor.levels))
        table.add_row(factor.name, levels, str(entry.reported[factor.name]), Text(factor.says))
    out.print(table)
    table = section("Claims (`repro verdicts` has what they are worth)", "claim", "kind", "what is said", "source")
    for claim in entry.claims:
        table.add_row(claim.id, claim.kind, Text(claim.says), claim.source)
    out.print(table)
    table = section("Sources")
    for source in entry.sources:
        table.add_row(source.id, Text(source.says), source.url)
    out.print(table)
