"""Verdicts and outcomes as tables: claims or configurations by releases, equal neighbours in one column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from repro.judge.observed import Cell, cells
from repro.judge.verdicts import verdicts_in
from repro.show import terminal
from repro.store.records import Record
from repro.vocabulary import TRAINS, Failure

STYLES = {
    "resolves": "green",
    "confirmed": "green",
    "no effect": "red",
    "refuted": "red",
    "moves it": "magenta",
    "partly": "yellow",
    "not judged": "reverse",
    TRAINS: "green",
}
NOT_JUDGED = "not judged"


def columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Group verdict rows into columns: (heading, verdict by claim). Neighbouring cells that agree share a column."""
    by_cell: dict[str, dict[str, str]] = {}
    heads: dict[str, tuple[str, str]] = {}
    for row in rows:
        name = row["claim"] if row["spelling"] == "as written" else f"{row['claim']} ({row['spelling']})"
        by_cell.setdefault(row["cell"], {})[name] = row["verdict"] or NOT_JUDGED
        heads[row["cell"]] = (row["transformers"], row["torch"])
    return _grouped([(heads[cell], column) for cell, column in by_cell.items()])


def _grouped(parts: list[tuple[tuple[str, str], dict[str, str]]]) -> list[tuple[str, dict[str, str]]]:
    usual = Counter(torch for (_, torch), _ in parts).most_common(1)[0][0] if parts else ""
    groups: list[tuple[list[str], dict[str, str]]] = []
    for (release, torch), column in parts:
        head = release if torch == usual else f"{release} (torch {torch})"
        if groups and groups[-1][1] == column:
            groups[-1][0].append(head)
        else:
            groups.append(([head], column))
    return [(heads[0] if len(heads) == 1 else f"{heads[0]} to {heads[-1]}", column) for heads, column in groups]


def print_verdicts(failure: Failure, records: Sequence[Record]) -> None:
    """Print what was observed and what each claim is worth, by release, to standard output."""
    observed = cells(failure, records)
    out = terminal.out()
    out.print(Text(f"{failure.id}: {failure.title}", style="bold"))
    if not observed:
        out.print("nothing was observed yet: run `repro run` or `repro matrix`")
        return
    out.print(_outcome_table(failure, observed))
    rows = verdicts_in(failure, observed)
    out.print(_claim_table(failure, columns(rows)))
    working = _working(failure, rows)
    out.print(f"cures that work where the failure is: {working or 'none that was tried'}")
    unjudged = Counter(str(row["detail"]) for row in rows if row["verdict"] is None)
    for why, count in unjudged.most_common(5):
        out.print(f"not judged, {count} times: {why}")


def _working(failure: Failure, rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the advice that resolved the failure in every cell where there was something to resolve."""
    good = []
    for claim in failure.claims:
        judged = {row["verdict"] for row in rows if row["claim"] == claim.id and row["verdict"] != "not needed"}
        if claim.kind == "advice" and judged == {"resolves"}:
            good.append(f"{claim.id} ({claim.says})")
    return "; ".join(good)


def _outcome_table(failure: Failure, observed: Sequence[Cell]) -> Table:
    configurations = {"the plain run": failure.configuration(), "the report": failure.reported}
    for claim in failure.claims:
        if claim.change and claim.base is None:
            configurations[f"the report, with {claim.id}"] = failure.reported.but(**claim.change)
    parts = []
    for cell in observed:
        outcomes = {n: cell.outcome_of(failure, c) for n, c in configurations.items()}
        parts.append(((cell.transformers, cell.torch), {n: o.name or o.why for n, o in outcomes.items()}))
    grouped = _grouped(parts)
    table = Table("configuration", *[head for head, _ in grouped], title="outcomes", title_justify="left", box=None)
    for name in configurations:
        table.add_row(name, *[Text(column[name], style=STYLES.get(column[name], "")) for _, column in grouped])
    return table


def _claim_table(failure: Failure, grouped: Sequence[tuple[str, Mapping[str, str]]]) -> Table:
    table = Table("claim", *[head for head, _ in grouped], title="verdicts", title_justify="left", box=None)
    names = list(dict.fromkeys(name for _, column in grouped for name in column))
    says = {claim.id: claim.says for claim in failure.claims}
    says |= {f"{claim.id} (today's)": claim.says_today for claim in failure.claims if claim.today}
    for name in names:
        cells_of_row = [column.get(name, NOT_JUDGED) for _, column in grouped]
        styled = [Text(verdict, style=STYLES.get(verdict, "")) for verdict in cells_of_row]
        table.add_row(f"{name}: {says.get(name, '')}", *styled)
    return table
