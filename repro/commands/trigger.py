"""`repro trigger`: the minimal condition of every outcome, from stored observations."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from repro.commands import COULD_NOT_RUN, DEFAULT_RESULTS, NOT_AS_DECLARED, WRONG_USAGE, JsonOption, ResultsOption, Stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("trigger")
    def trigger(
        failure: Annotated[str, typer.Argument(metavar="FAILURE", help="Id of a failure; `repro list` names them.")],
        results: ResultsOption = DEFAULT_RESULTS,
        scope: Annotated[
            Optional[str],  # noqa: UP045 - typer reads this at run time on Python 3.10
            typer.Option("--scope", metavar="SCOPE", help="`model` or `trainer` only; both when left out."),
        ] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Say under which condition each outcome comes, in which releases, and whether the declared trigger agrees.

        Works on observations that were stored before; it runs nothing. Ends with 1 when an observation differs from
        the declared trigger or from another one of the same trial, with 3 when there is nothing to compare.
        """
        from repro.catalog import find
        from repro.show import terminal
        from repro.store.reader import read
        from repro.trigger.report import report
        from repro.trigger.table import tables
        from repro.vocabulary import SCOPES

        known = find(failure)
        chosen = next((name for name in SCOPES if name == scope), None)
        if scope is not None and chosen is None:
            raise Stop(f"there is no scope {scope!r}; say {' or '.join(SCOPES)}", WRONG_USAGE)
        found = report(known, tables(known, read(results, containing=f'"{known.id}"')), chosen)
        if not found["ranges"] and not found["contradictions"]:
            raise Stop(
                f"no finished observations of {known.id} in {results}: run `repro run {known.id}` or `repro matrix` "
                "first, or name --results.",
                COULD_NOT_RUN,
            )
        if as_json:
            terminal.print_json(found)
        else:
            _show(found)
        comparison = found["comparison"]
        if comparison["differences"] or found["contradictions"]:
            raise typer.Exit(NOT_AS_DECLARED)
        if comparison["no_mechanism"]:
            raise typer.Exit(COULD_NOT_RUN)


def _show(found: dict[str, Any]) -> None:
    for span in found["ranges"]:
        _show_range(span)
    for item in found["contradictions"]:
        print(f"contradictory: {_configuration(item['configuration'])} ({item['scope']}) in {item['cell']}")
        for outcome, ids in item["outcomes"].items():
            print(f"  {outcome}: {len(ids)} observations ({', '.join(ids)})")
    _show_comparison(found)


def _show_range(span: dict[str, Any]) -> None:
    first, last, observed = span["first"], span["last"], len(span["releases"])
    name = first if observed == 1 else f"{first} to {last} ({observed} releases observed)"
    of = f" of {span['possible']}" if span["possible"] else ""
    print(f"transformers {name}, torch {span['torch']}, {span['device']}, {span['scope']} level")
    print(f"  {span['configurations']}{of} configurations observed")
    for condition in span["conditions"]:
        print(f"\n  {condition['sentence']}")
        print(f"    formula: {condition['formula']}  ({condition['configurations']} configurations)")
        for item in condition["evidence"]:
            print(f"    {item['literal']}: {_evidence(item)}")
        if condition["never_matters"]:
            print(f"    never matters: {', '.join(map(_counted, condition['never_matters']))}")
        if condition["untested"]:
            print(f"    not tested: {', '.join(condition['untested'])}")
    print()


def _evidence(item: dict[str, Any]) -> str:
    if item["with"] is None:
        return "fits what was run, but no pair of trials differs in this alone"
    one, other = item["with"], item["without"]
    return (
        f"{one['trial'].split('.', 1)[1]} ({item['factor']} {one['level']}: {one['outcome']}) / "
        f"{other['trial'].split('.', 1)[1]} ({other['level']}: {other['outcome']})"
    )


def _counted(item: dict[str, Any]) -> str:
    claims = f", so not {' nor '.join(item['claims'])}" if item["claims"] else ""
    beside = "" if item["alone"] else " beside others that never matter"
    return f"{item['factor']} ({item['pairs']} pair{'s' if item['pairs'] > 1 else ''}{beside}{claims})"


def _show_comparison(found: dict[str, Any]) -> None:
    comparison = found["comparison"]
    total = comparison["agreed"] + len(comparison["differences"])
    print(f"declared: {found['declared']}")
    print(f"  {comparison['agreed']} of {total} observations agree", end="")
    print(f"; it says nothing about {comparison['silent']} more" if comparison["silent"] else "")
    for item in comparison["differences"]:
        print(
            f"  differs in transformers {item['transformers']} ({item['scope']}): "
            f"{_configuration(item['configuration'])}: declared {item['expected']}, observed {item['observed']} "
            f"({item['trial']})"
        )
    for cell in comparison["no_mechanism"]:
        print(f"  not compared: {cell} has no record of its mechanism; run a trial there again")
    if found["unfinished"] or found["foreign"]:
        print(
            f"  left out: {found['unfinished']} trials that were not seen to their end, "
            f"{found['foreign']} with factors or levels that the failure no longer has"
        )


def _configuration(deviations: dict[str, Any]) -> str:
    return ", ".join(f"{name}={level}" for name, level in deviations.items()) or "the plain run"
