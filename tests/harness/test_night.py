"""A whole night as the nightly's own steps run it, from stored cells to the issue: red when it must be, and quiet."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from repro.catalog import failures
from repro.cells.releases import dump, table
from repro.matrix.plan import Chosen
from repro.nightly import plan as planning
from repro.nightly import tracking
from repro.nightly.github import GitHubError, fetch_last_green
from repro.nightly.ledger import ledger, listing
from repro.store.reader import read
from repro.store.records import Record, record
from repro.store.reference import REFERENCE
from repro.store.writer import Writer

from .records import DOUBLE, WHISPER, where
from .run_workflow import ROOT, run_job

NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"
CHOSEN = Chosen(tuple(f for f in failures().values() if not f.retired), "reference")
CURED = WHISPER.trial(WHISPER.reported.but(use_reentrant="False")).id
LIGHT = ("pip install", "setup-python")
RELEASES = ("4.53.3", "5.24.0")
CELLS = {
    row["cell"]
    for row in read(REFERENCE).of_kind("cell")
    if row["transformers"] in RELEASES and row["torch"].startswith("2.13")
}


def stored(path: Path, change: Callable[[Record], Record | None] = lambda row: row) -> None:
    """Store what the stored reference has of the night's cells; `change` may alter a record, or lose it."""
    writer = Writer(path)
    for row in read(REFERENCE).records:
        kept = change(dict(row)) if row["cell"] in CELLS else None
        if kept:
            writer.append(kept)
    writer.close()


GH = """#!{python}
import os, shutil, sys
words = sys.argv[1:]
if words[:2] == ["run", "list"]:
    print(os.environ["NIGHTS"])
elif words[:2] == ["run", "download"] and os.path.isdir(os.environ["EARLIER"]):
    shutil.copytree(os.environ["EARLIER"], words[words.index("--dir") + 1])
else:
    sys.exit("no valid artifacts found to download")
"""


class Night:
    """The jobs before the merge as they ended, and the merge run on what they left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.results = self.state / "artifacts" / "results-cell"
        self.earlier = root / "earlier"
        self.env = {"NIGHTS": "[]", "EARLIER": str(self.earlier)}
        self.cells = planning.plan(RELEASES, CHOSEN, table(), torch=["2.13.0"], python="3.11")
        self.plan("")

    def plan(self, runner: str) -> None:
        gpu = planning.on_gpu(RELEASES, CHOSEN, table(), runner)
        kept = self.state / "artifacts" / "plan"
        kept.mkdir(parents=True, exist_ok=True)
        # The night's own table of releases, in which none is newer than its cells.
        known = [release for release in table().of("transformers") if release.parsed <= Version(RELEASES[-1])]
        of_then = replace(table(), packages={**table().packages, "transformers": tuple(known)})
        (kept / "repro" / "cells").mkdir(parents=True, exist_ok=True)
        (kept / "repro" / "cells" / "releases.json").write_text(dump(of_then))
        (kept / "plan.json").write_text(json.dumps(planning.as_matrix(self.cells, gpu)))

    def earlier_ended_green(self) -> None:
        self.env["NIGHTS"] = json.dumps([{"databaseId": 7, "displayTitle": "nightly all", "event": "schedule"}])

    def merge(self, accept: bool = False, **ended: str) -> tuple[str, tracking.Issue]:
        results = {"plan": "success", "cell": "success", "gpu": "skipped", "benchmark": "success", **ended}
        jobs = {name: {"result": result, "outputs": {}} for name, result in results.items()}
        (self.state / "jobs.json").write_text(json.dumps(jobs))
        for name in ("results", "issue", "site"):
            shutil.rmtree(self.state / "artifacts" / name, ignore_errors=True)
        result = run_job(NIGHTLY, "merge", self.state, inputs={"accept": accept}, given=self.env, skip=LIGHT)
        return result, tracking.read(self.state / "artifacts" / "issue" / "issue.json")


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Let the steps' `repro` be that of their workspace, and `gh` one that knows the earlier night of this test."""
    programs = {"repro": f'#!/bin/sh\nexec "{sys.executable}" -m repro "$@"\n', "gh": GH.format(python=sys.executable)}
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return Night(tmp_path)


def lose(release: str) -> Callable[[Record], Record | None]:
    return lambda row: None if f"transformers-{release}-" in row["cell"] else row


def break_the_cure(row: Record) -> Record:
    """Let the reported run with `use_reentrant=False` fail as it does without it, in the affected release."""
    if row["kind"] == "observation" and row["trial"] == CURED and row["transformers"] == "4.53.3":
        return {**row, **DOUBLE}
    return row


def test_a_night_in_which_all_ran_and_nothing_changed_is_green_and_quiet(night: Night) -> None:
    stored(night.earlier)
    stored(night.results)
    night.earlier_ended_green()
    result, issue = night.merge()
    assert (result, issue.news) == ("success", False)
    assert f"skipped: `{planning.NO_RUNNER}`" in issue.body
    assert "Nothing changed." in issue.body
    assert (night.state / "artifacts" / "site" / "index.html").is_file()


def test_the_first_night_of_all_has_nothing_to_compare_with_and_is_green(night: Night) -> None:
    stored(night.results)
    assert night.merge()[0] == "success"


def test_a_cell_that_is_missing_is_red_and_the_issue_names_it(night: Night) -> None:
    stored(night.results, lose("4.53.3"))
    result, issue = night.merge()
    assert result == "failure"
    assert issue.title == "Nightly: part of it did not run"
    assert "* `transformers 4.53.3 with torch 2.13.0`: `nothing was collected" in issue.body.replace(
        "* `transformers 4.53.3`", "* `transformers 4.53.3 with torch 2.13.0`"
    )


def test_a_cell_that_could_not_be_built_is_red_and_the_issue_says_why(night: Night) -> None:
    stored(night.results, lose("4.53.3"))
    writer = Writer(night.results, "matrix")
    writer.append(record("cell failed", "x", requested=night.cells[0].name, stage="resolve", reason="no such wheel"))
    writer.close()
    result, issue = night.merge(cell="failure")
    assert result == "failure"
    assert "nothing was observed: no such wheel" in issue.body
    assert "the job cell ended with: failure" in issue.body


def test_a_cure_that_works_no_more_is_red_told_and_what_to_do_and_still_told_once_it_was_accepted(night: Night) -> None:
    stored(night.earlier)
    stored(night.results, break_the_cure)
    night.earlier_ended_green()
    result, issue = night.merge()
    assert result == "failure"
    assert issue.title == "Nightly: something changed"
    assert "use-reentrant-false: resolves -> no effect in transformers 4.53.3" in issue.body
    assert "a cure that worked no longer does" in issue.body
    assert "See the evidence: repro verdicts whisper-double-backward" in issue.body
    assert "*accept* ticked" in issue.body
    assert night.merge(accept=True)[0] == "success"
    shutil.rmtree(night.earlier)
    stored(night.earlier, break_the_cure)
    _, later = night.merge()
    assert later.title == "Nightly: something is still not as declared"
    assert "declared: trains; observed: double backward" in later.body


def test_a_gpu_that_was_planned_and_did_not_run_is_missing_and_red(night: Night) -> None:
    stored(night.results)
    night.plan("a-label")
    result, issue = night.merge(gpu="cancelled")
    assert result == "failure"
    assert "the job gpu ended with: cancelled" in issue.body
    assert "`transformers 5.24.0 on a GPU`: `nothing was collected" in issue.body


def test_an_earlier_night_that_cannot_be_had_is_red_and_no_reason_to_say_that_nothing_changed(night: Night) -> None:
    stored(night.results)
    night.earlier_ended_green()
    result, issue = night.merge()
    assert result == "failure"
    assert "nothing to compare with" in issue.body
    assert night.merge(accept=True)[0] == "success"


def test_the_planned_cell_on_a_gpu_is_found_by_its_device_whatever_its_torch_and_python() -> None:
    gpu = planning.on_gpu(["4.53,5.24"], CHOSEN, table(), "label")
    about = {**where("5.24.0", "2.13.0+cu130", "cuda"), "python": "3.12.1", "resolved": {}, "requested": "x"}
    trials = planning.trials_of(CHOSEN, "cuda")
    rows = [record("cell", "c", **about)]
    rows += [record("observation", "c", failure=WHISPER.id, trial=t, **about, end="completed") for t in trials]
    assert ledger([gpu], {listing(gpu): trials}, rows).green
    assert not ledger([gpu], {listing(gpu): trials}, [{**row, "device": "cpu"} for row in rows]).green


def test_nothing_but_the_last_green_night_of_that_title_is_fetched_and_no_half_of_one_stays(tmp_path: Path) -> None:
    rows = [
        {"databaseId": 3, "displayTitle": "nightly 4.53", "event": "workflow_dispatch"},
        {"databaseId": 2, "displayTitle": "nightly all", "event": "pull_request"},
        {"databaseId": 1, "displayTitle": "nightly all", "event": "schedule"},
    ]
    asked: list[list[str]] = []

    def gh(words: Any) -> str:
        asked.append(list(words))
        return json.dumps(rows)

    assert fetch_last_green("o/n", "main", "nightly all", tmp_path / "a", gh) == "1"
    assert asked[1][:3] == ["run", "download", "1"]
    assert fetch_last_green("o/n", "main", "nightly none", tmp_path / "b", gh) == ""
    assert (tmp_path / "b").is_dir()

    def broken(words: Any) -> str:
        if words[1] == "list":
            return json.dumps(rows)
        (tmp_path / "c").mkdir()
        raise GitHubError("gone")

    with pytest.raises(GitHubError, match="gone"):
        fetch_last_green("o/n", "main", "nightly all", tmp_path / "c", broken)
    assert not (tmp_path / "c").exists()
    with pytest.raises(GitHubError, match="answered"):
        fetch_last_green("o/n", "main", "nightly all", tmp_path / "d", lambda _: "what?")
