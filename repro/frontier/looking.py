"""Having releases looked at: their cells built and the few trials of a question run there, by the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from repro.cells.cache import Cache
from repro.frontier.axis import Cells
from repro.frontier.question import Question
from repro.matrix import plan as planning
from repro.matrix.attempt import Setting
from repro.matrix.progress import Progress
from repro.matrix.run import run


class InterruptedSearchError(Exception):
    """The user ended the search; what was observed is stored."""


def not_cached(versions: Sequence[str], cell_of: Cells) -> Mapping[str, str]:
    """Return the versions whose cells are not built, with that as the reason not to look at them."""
    cache = Cache.default()
    return {v: "its cell is not cached, and --offline was said" for v in versions if cache.find(cell_of(v)) is None}


def look(versions: Sequence[str], cell_of: Cells, question: Question, results: Path, *, jobs: int) -> Mapping[str, str]:
    """Run a question's trials in the cells of some versions, and return why some of them could not be run.

    Raises InterruptedSearchError, and ResultsError when results cannot be written.
    """
    chosen = planning.Chosen((question.failure,), "reference", question.failure.reported_scope, question.trials)
    asked = [planning.Candidate((spec := cell_of(version)).name, spec=spec) for version in versions]
    cache = Cache.default()
    planned = planning.plan(asked, chosen, results, cache=cache)
    setting = Setting(results, workers=1, trial_set="reference")
    with Progress() as progress:
        runs = run(planned, chosen, setting, progress, cache=cache, jobs=jobs, again=False)
    if any(done.interrupted for done in runs):
        raise InterruptedSearchError
    return {
        version: f"{done.trouble.stage}: {done.trouble}"
        for version, done in zip(versions, runs, strict=True)
        if done.trouble is not None
    }
