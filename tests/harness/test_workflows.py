"""The workflows: pinned, without rights they do not need, and made of commands that exist here.

The schema and zizmor are asked by `.ci/run`; here is what they do not know.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from repro.commands import build_app

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(ROOT.joinpath(".github", "workflows").glob("*.yml"))
RIGHTS = {"contents": "read", "actions": "read", "issues": "write"}


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job.get("steps", ())


def triggers(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    found: dict[str, Any] = yaml.safe_load(path.read_text())[True]
    return found


def test_there_are_four() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "gpu", "mutants", "nightly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_a_commit_and_names_its_version(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    of_others = [line for line in used if not line.startswith("./.github/workflows/gpu.yml ")]
    assert not [line for line in of_others if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_no_job_has_more_rights_time_or_credentials_than_it_needs(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    assert document["permissions"] == {}
    assert "concurrency" in document
    for name, job in jobs(path).items():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 90, name
        assert job["permissions"].items() <= RIGHTS.items(), name
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False, name
    assert "secrets." not in path.read_text()
    assert "pull_request_target" not in triggers(path)


def test_only_the_job_that_keeps_the_issue_may_write_and_it_runs_nothing_else() -> None:
    writers = {(p.stem, n) for p in WORKFLOWS for n, job in jobs(p).items() if "write" in job["permissions"].values()}
    assert writers == {("nightly", "issue")}
    [posting] = [path for path in WORKFLOWS if path.stem == "nightly"]
    last = jobs(posting)["issue"]["steps"][-1]["run"]
    assert last == 'repro tracking post issue.json --repository "$REPOSITORY"'


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_of_substance_is_in_the_steps_and_nothing_is_pasted_into_a_shell(path: Path) -> None:
    for step in steps(path):
        script = step.get("run", "")
        assert "${{" not in script
        assert len(script.splitlines()) <= 8


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_in_a_step_exists_with_its_options(path: Path) -> None:
    root = typer.main.get_command(build_app())
    found = 0
    for step in steps(path):
        for line in re.findall(r"(?m)(?:^|/|&& )repro (.*)$", step.get("run", "")):
            words = shlex.split(re.split(r" (?:>|>>|\|\|) ", line)[0])
            command: Any = root
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known, line
            found += 1
        for program in re.findall(r"\bpython (\S+\.py)\b", step.get("run", "")):
            assert ROOT.joinpath(program).is_file()
            found += 1
    assert found


def test_the_nightly_goes_on_when_a_cell_fails_and_ends_red_when_part_of_it_did_not_run() -> None:
    nightly = jobs(next(path for path in WORKFLOWS if path.stem == "nightly"))
    assert nightly["cell"]["strategy"]["fail-fast"] is False
    assert nightly["cell"]["strategy"]["matrix"] == "${{ fromJSON(needs.plan.outputs.matrix) }}"
    assert nightly["merge"]["if"] == "always()"
    told = set(nightly) - {"merge", "issue"}
    assert set(nightly["merge"]["needs"]) == told
    [writing] = [step for step in nightly["merge"]["steps"] if "tracking write" in step.get("run", "")]
    assert set(re.findall(r"needs\.(\w+)\.result", writing["env"]["JOBS"])) == told
    scripts = [step.get("run", "") for step in nightly["merge"]["steps"]]
    assert "repro ledger --results results" in scripts
    assert nightly["issue"]["if"].startswith("always()")


def test_a_run_by_hand_of_some_releases_neither_keeps_the_issue_nor_is_compared_with() -> None:
    path = next(path for path in WORKFLOWS if path.stem == "nightly")
    document = yaml.safe_load(path.read_text())
    whole = "inputs.transformers || 'all'"
    assert document["run-name"] == f"nightly ${{{{ {whole} }}}}"
    assert f"({whole}) == 'all'" in document["jobs"]["issue"]["if"]
    assert "github.ref_name == " in document["jobs"]["issue"]["if"]
    [fetching] = [step for step in document["jobs"]["merge"]["steps"] if "tracking before" in step.get("run", "")]
    assert '--title "nightly all"' in fetching["run"]
    assert fetching["continue-on-error"] is True


def test_artifacts_of_one_run_have_names_of_their_own_and_what_is_fetched_was_kept() -> None:
    for path in WORKFLOWS:
        kept, fetched = (
            [step["with"] for step in steps(path) if step.get("uses", "").startswith(f"actions/{what}-artifact@")]
            for what in ("upload", "download")
        )
        names = [each["name"] for each in kept]
        assert len(names) == len(set(names))
        for each in fetched:
            wanted = each.get("name") or each["pattern"].replace("*", "")
            assert any(name == each.get("name") or ("pattern" in each and name.startswith(wanted)) for name in names)


def test_a_pull_request_reaches_a_gpu_only_behind_a_label() -> None:
    path = next(path for path in WORKFLOWS if path.stem == "gpu")
    assert triggers(path)["pull_request"] == {"types": ["labeled"]}
    assert "github.event.label.name == 'gpu'" in jobs(path)["gpu"]["if"]
    # Another label's run is skipped, and must not take this one's place before it is.
    assert "github.event.label.name" in yaml.safe_load(path.read_text())["concurrency"]["group"]


def test_the_night_calls_the_gpu_only_where_a_runner_is_declared_and_hands_on_what_was_planned() -> None:
    nightly, gpu = (next(path for path in WORKFLOWS if path.stem == name) for name in ("nightly", "gpu"))
    calling = jobs(nightly)["gpu"]
    assert calling["uses"] == "./.github/workflows/gpu.yml"
    assert calling["if"] == "vars.GPU_RUNNER != ''"
    assert set(calling["with"]) == set(triggers(gpu)["workflow_call"]["inputs"])
    assert calling["with"]["arguments"] == "${{ needs.plan.outputs.gpu }}"
    [kept] = [step["with"]["name"] for step in steps(gpu) if "upload-artifact" in step.get("uses", "")]
    [merged] = [
        step["with"]["pattern"] for step in jobs(nightly)["merge"]["steps"] if "pattern" in step.get("with", {})
    ]
    assert kept.startswith(merged.rstrip("*"))
