"""`repro frontier`: between which releases a failure, a claim's verdict or a peak changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.commands import COULD_NOT_RUN, DEFAULT_RESULTS, NOT_AS_DECLARED, WRONG_USAGE, JsonOption, ResultsOption, Stop

if TYPE_CHECKING:
    from repro.frontier.question import Question
    from repro.frontier.search import Found, Probe
    from repro.store.records import Record


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("frontier")
    def frontier(
        failure: Annotated[str, typer.Argument(metavar="FAILURE", help="Id of a failure; `repro list` names them.")],
        claim: Annotated[
            str, typer.Option(metavar="ID", help="Search where the verdict on this claim changes, instead.")
        ] = "",
        budget: Annotated[
            str,
            typer.Option(
                metavar="NAME",
                help="Search where a peak moved: `run` or `trial` of a budget, `plain`, `reported`, or a claim's id.",
            ),
        ] = "",
        along: Annotated[
            str, typer.Option(metavar="PACKAGE", help="What varies: transformers, torch or accelerate.")
        ] = "transformers",
        transformers: Annotated[
            str,
            typer.Option(
                metavar="RANGE",
                help="Search from the oldest to the newest of these. Along another package: the release that stays.",
            ),
        ] = "",
        within: Annotated[
            str, typer.Option(metavar="RANGE", help="Search the versions in this range only, along any package.")
        ] = "",
        torch: Annotated[str, typer.Option(metavar="VERSION", help="torch for the cells. Default: the desk's.")] = "",
        prereleases: Annotated[bool, typer.Option("--prereleases", help="Take pre-releases too.")] = False,
        exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Observe every release: no guess left.")] = False,
        resolution: Annotated[
            int, typer.Option(min=1, help="Without a change found, stop when fewer releases lie between observed ones.")
        ] = 8,
        results: ResultsOption = DEFAULT_RESULTS,
        offline: Annotated[bool, typer.Option("--offline", help="Use cached cells only.")] = False,
        jobs: Annotated[int, typer.Option(min=1, help="Cells at a time.")] = 2,
        as_json: JsonOption = False,
    ) -> None:
        """Find the first and the last affected release, in few cells, and prove both by their neighbours.

        Starts from nothing that is declared. Ends with 1 when the failure was never seen, or when observations of one
        release contradict each other; with 3 when an edge stays open, or nothing could be observed.
        """
        from repro.catalog import find
        from repro.cells.releases import SelectionError, table
        from repro.frontier.axis import axis
        from repro.frontier.looking import InterruptedSearchError, look, not_cached
        from repro.frontier.question import QuestionError, question
        from repro.frontier.report import lines, report
        from repro.frontier.search import search
        from repro.show import terminal

        try:
            asked = question(find(failure), claim, budget)
            what, cell_of = axis(
                table(), along, within=within, transformers=transformers, torch=torch, prereleases=prereleases
            )
            found = search(
                asked,
                what,
                lambda versions: look(versions, cell_of, asked, results, jobs=jobs),
                lambda: _stored(results, asked.failure.id),
                at_a_time=jobs,
                resolution=resolution,
                exhaustive=exhaustive,
                unusable=not_cached(what.versions, cell_of) if offline else {},
                told=_tell,
            )
        except (SelectionError, QuestionError) as error:
            raise Stop(str(error), WRONG_USAGE) from None
        except InterruptedSearchError:
            raise Stop("interrupted. What was observed is stored; the same command goes on from there.", 130) from None
        told = report(found)
        if as_json:
            terminal.print_json(told)
        else:
            print("\n".join(lines(told)))
        _end(asked, found, told)


def _stored(results: Path, failure: str) -> Sequence[Record]:
    from repro.store.reader import read

    return read(results, containing=f'"{failure}"').records if results.exists() else ()


def _tell(probes: Sequence[Probe], unusable: Mapping[str, str]) -> None:
    from repro.frontier.report import said
    from repro.show import terminal

    for probe in probes:
        reason = unusable.get(probe.version)
        terminal.say(f"{probe.version}: {f'skipped: {reason}' if reason else said(probe.answer.value)}")


def _end(asked: Question, found: Found, told: dict[str, Any]) -> None:
    """End with the exit code that the findings call for, and say why it is not 0."""
    usable = [value for value in found.seen.values() if value is not None]
    if found.contradictions:
        named = ", ".join(probe.version for probe in found.contradictions)
        raise Stop(f"observations contradict each other in {named}: see the evidence above", NOT_AS_DECLARED)
    if not usable:
        reasons = "\n".join(f"  {version}: {reason}" for version, reason in list(found.unusable.items())[:5])
        raise Stop(f"no release could be observed\n{reasons}", COULD_NOT_RUN)
    if not asked.claim and not asked.peak_of and told["first_affected"] is None:
        widest = max((len(gap.unseen) for gap in _gaps(found)), default=0)
        hidden = f" A stretch of up to {widest} releases could hide between observed ones; --exhaustive leaves none."
        raise Stop(
            f"{asked.failure.id} was never seen in {found.axis.versions[0]} to {found.axis.versions[-1]}: "
            f"{len(usable)} of {len(found.axis.versions)} releases observed.{hidden if widest else ''}",
            NOT_AS_DECLARED,
        )
    if not told["proved"]:
        raise Stop("an edge stays open, because releases between the observed ones cannot be run", COULD_NOT_RUN)


def _gaps(found: Found) -> Sequence[Any]:
    from repro.frontier import strategy

    return strategy.gaps(found.seen, same=found.question.same)
