"""`repro verdicts`: judge from stored results; runs nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from repro.commands import DEFAULT_RESULTS, JsonOption, ResultsOption, require_observations


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("verdicts")
    def verdicts_command(
        failure: Annotated[str, typer.Argument(help="Id of a failure; `repro list` shows them.")],
        results: ResultsOption = DEFAULT_RESULTS,
        as_json: JsonOption = False,
    ) -> None:
        """Judge every claim about a failure, release by release, from stored results. Runs nothing.

        Ends with 3 when there is no observation to judge.
        """
        from repro.catalog import find
        from repro.show import terminal
        from repro.store.reader import read
        from repro.store.records import JUDGED

        entry = find(failure)
        stored = read(results, containing=entry.id, kinds=JUDGED)
        for damage in stored.damage:
            terminal.say(f"skipped a line that is no record: {damage}")
        if as_json:
            from repro.judge.verdicts import verdicts

            terminal.print_json(verdicts(entry, stored.records))
        require_observations(stored.records, (entry.id,), results)
        if as_json:
            return
        from repro.show.verdicts import print_verdicts

        print_verdicts(entry, stored.records)
