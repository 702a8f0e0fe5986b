"""Running a workflow's jobs here: in the order, under the conditions and with the artifacts that GitHub would have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .run_workflow import ROOT, StepError, checkout, download, rows, run_job, upload
from .workflow_expressions import ExpressionError, evaluate, holds, interpolate

TINY = """
on: workflow_dispatch
jobs:
  first:
    outputs:
      rows: ${{ steps.make.outputs.rows }}
    steps:
      - id: make
        env:
          WHO: ${{ inputs.who || 'nobody' }}
        run: |
          row() { printf '{"n": %s, "of": "%s"}' "$1" "$WHO"; }
          echo "rows={\\"include\\": [$(row 1), $(row 2)]}" >> "$GITHUB_OUTPUT"
          echo "KEPT=for later" >> "$GITHUB_ENV"
          mkdir -p .kept && echo "$WHO" > .kept/who
      - run: test "$KEPT" = "for later"
      - if: inputs.who == 'never'
        run: exit 9
      - uses: actions/upload-artifact@0000 # v0
        with: {name: kept, path: .kept, include-hidden-files: true}
  second:
    needs: first
    strategy:
      matrix: ${{ fromJSON(needs.first.outputs.rows) }}
    steps:
      - uses: actions/download-artifact@0000 # v0
        with: {name: kept, path: got}
      - env: {N: "${{ matrix.n }}", OF: "${{ matrix.of }}"}
        run: test "$(cat got/who)" = "$OF" && [ "$N" -lt "${LIMIT:-9}" ] && echo "$N of $OF" >> "$GITHUB_STEP_SUMMARY"
      - run: echo not after a failure >> "$GITHUB_STEP_SUMMARY"
      - if: always()
        run: echo always >> "$GITHUB_STEP_SUMMARY"
  third:
    needs: [first, second]
    if: always() && needs.second.result != 'skipped'
    steps:
      - run: echo third >> "$GITHUB_STEP_SUMMARY"
  fourth:
    needs: second
    steps:
      - run: echo fourth >> "$GITHUB_STEP_SUMMARY"
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yml"
    path.write_text(TINY)
    return path


def summary(state: Path) -> list[str]:
    return (state / "summary.md").read_text().splitlines()


def test_jobs_hand_on_outputs_artifacts_and_results_and_every_row_of_a_matrix_runs(tiny: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for job in ("first", "second", "third", "fourth"):
        assert run_job(tiny, job, state, inputs={"who": "me"}) == "success"
    fine = ["not after a failure", "always"]
    assert summary(state) == ["1 of me", *fine, "2 of me", *fine, "third", "fourth"]


def test_after_a_failure_only_what_runs_always_does_in_the_job_and_in_those_that_need_it(
    tiny: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    run_job(tiny, "first", state)
    assert run_job(tiny, "second", state, given={"LIMIT": "2"}) == "failure"
    assert run_job(tiny, "third", state) == "success"
    assert run_job(tiny, "fourth", state) == "skipped"
    assert summary(state) == ["1 of nobody", "not after a failure", "always", "always", "third"]


def test_a_row_can_be_chosen_and_a_step_left_out_which_is_said(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    run_job(tiny, "first", state)
    assert run_job(tiny, "second", state, wanted={"n": "2"}, skip=["echo always"]) == "success"
    assert summary(state) == ["2 of nobody", "not after a failure"]
    assert "4/4 skipped, as asked: echo always" in capsys.readouterr().out


CONTEXT: dict[str, Any] = {
    "github": {"ref_name": "main", "event": {}},
    "inputs": {"accept": True},
    "needs": {"a": {"result": "failure"}},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("github.event.repository.default_branch || github.ref_name", "main"),
        ("(inputs.transformers || 'all') == 'all' && github.ref_name == 'MAIN'", True),
        ("needs.a.result != 'success' && !inputs.accept", False),
        ("inputs.nothing == ''", True),
        ("fromJSON('{\"a\": [1]}')", {"a": [1]}),
        ("'it''s' != 'its'", True),
        ("always() && failure()", False),
    ],
)
def test_expressions_have_the_values_that_github_gives_them(text: str, value: Any) -> None:
    assert evaluate(text, CONTEXT) == value


def test_a_condition_without_a_word_about_status_does_not_hold_after_a_failure() -> None:
    assert holds("", CONTEXT)
    assert not holds("", CONTEXT, failed=True)
    assert not holds("github.ref_name == 'main'", CONTEXT, failed=True)
    assert holds("always() && github.ref_name == 'main'", CONTEXT, failed=True)
    assert holds("${{ !cancelled() }}", CONTEXT, failed=True)


@pytest.mark.parametrize("text", ["secrets.token", "a b", "(true", "format('x')", "true ||", "'open"])
def test_what_is_not_known_here_is_an_error_and_no_empty_value(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, CONTEXT)


def test_a_text_takes_values_as_github_writes_them() -> None:
    assert interpolate("${{ inputs.accept }}-${{ inputs.no }}-${{ github.ref_name }}", CONTEXT) == "true--main"


def test_a_matrix_of_axes_is_crossed_and_a_job_without_one_has_one_row() -> None:
    crossed = rows({"strategy": {"matrix": {"a": [1, 2], "b": ["x"]}}}, {})
    assert crossed == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert rows({}, {}) == [{}]


def test_artifacts_keep_paths_below_what_they_share_and_leave_out_what_is_hidden(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    for name in ("plan.json", "deep/er/table.json", ".repro/results/a.jsonl"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    upload(work, kept, {"name": "plan", "path": "plan.json\ndeep/er/table.json\n"})
    upload(work, kept, {"name": "results-1", "path": ".repro/results", "include-hidden-files": "true"})
    with pytest.raises(StepError, match="no files"):
        upload(work, kept, {"name": "results-2", "path": ".repro/results", "if-no-files-found": "error"})
    with pytest.raises(StepError, match="already"):
        upload(work, kept, {"name": "plan", "path": "plan.json"})
    again = tmp_path / "again"
    download(again, kept, {"name": "plan"})
    download(again, kept, {"pattern": "results-*", "path": "results", "merge-multiple": "true"})
    download(again, kept, {"pattern": "nothing-*", "path": "results"})
    got = sorted(str(path.relative_to(again)) for path in again.rglob("*") if path.is_file())
    assert got == ["deep/er/table.json", "plan.json", "results/a.jsonl"]
    with pytest.raises(StepError, match="no artifact"):
        download(again, kept, {"name": "results-3"})


def test_a_checkout_has_what_git_has_and_nothing_that_it_ignores(tmp_path: Path) -> None:
    checkout(ROOT, tmp_path)
    assert (tmp_path / "pyproject.toml").is_file()
    assert (tmp_path / "repro" / "cells" / "releases.json").is_file()
    assert not (tmp_path / ".git").exists()
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step's `repro` be that of its own workspace, in this environment, in place of one installed for it."""
    command = tmp_path / "bin" / "repro"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m repro "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")


LIGHT = ("pip install", "repro releases --refresh", "setup-python")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("runner", ["", "a-gpu"])
def test_the_plan_job_of_the_nightly_emits_a_matrix_that_the_cell_job_takes(tmp_path: Path, runner: str) -> None:
    nightly = ROOT / ".github" / "workflows" / "nightly.yml"
    state = tmp_path / "state"
    asked = {"transformers": "4.53,5.24"}
    assert run_job(nightly, "plan", state, inputs=asked, variables={"GPU_RUNNER": runner}, skip=LIGHT) == "success"
    outputs = json.loads((state / "jobs.json").read_text())["plan"]["outputs"]
    matrix = json.loads(outputs["matrix"])
    assert [row["transformers"] for row in matrix["include"]] == ["4.53.3", "5.24.0", "main"]
    kept = json.loads((state / "artifacts" / "plan" / "plan.json").read_text())
    assert kept["include"] == matrix["include"]
    [gpu] = kept["gpu"]
    assert (gpu["device"], gpu["transformers"], bool(gpu["skipped"])) == ("cuda", "5.24.0", not runner)
    assert outputs["gpu"] == gpu["arguments"]
    assert (state / "artifacts" / "plan" / "repro" / "cells" / "releases.json").is_file()
