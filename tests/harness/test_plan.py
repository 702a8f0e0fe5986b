"""The plan: every cell once, whole however it is split, and refused where it makes no sense."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from repro.catalog import find
from repro.cells.releases import table
from repro.commands import Stop, build_app
from repro.matrix import plan as matrix_plan
from repro.matrix.plan import Chosen
from repro.nightly import plan as planning
from repro.nightly.plan import Entry, PlanError, Shard, shard

CHOSEN = Chosen((find("whisper-double-backward"),), "reference")
WHOLE = planning.plan(["all"], CHOSEN, table(), main=True)
WHISPER = ("--failures", "whisper-double-backward")


def repro(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), ["plan", *words])
    if isinstance(result.exception, Stop):
        return result.exception.code, str(result.exception)
    return result.exit_code, result.stdout


def arguments_of(entry: Entry) -> dict[str, str]:
    words = shlex.split(entry.arguments)
    return dict(zip(words[::2], words[1::2], strict=True))


def test_the_plan_is_a_matrix_of_jobs_with_a_cell_for_the_last_patch_of_every_minor_and_main() -> None:
    code, out = repro("--json", *WHISPER, "--trial-set", "reference", "--main")
    assert code == 0
    document = json.loads(out)
    assert set(document) == {"include"}
    assert [Entry(**row) for row in document["include"]] == list(WHOLE)
    minors = [tuple(entry.transformers.split(".")[:2]) for entry in WHOLE if entry.transformers != "main"]
    assert len(minors) == len(set(minors)) > 20
    assert WHOLE[-1].name == "environment main"
    assert all(entry.trials == len(CHOSEN.on("cpu")) > 0 for entry in WHOLE)


def test_the_whole_and_a_part_of_a_plan_are_counted_from_one() -> None:
    assert (shard("1/1"), shard("2/12"), shard("12/12")) == (Shard(1, 1), Shard(2, 12), Shard(12, 12))
    assert Shard(1, 2).part(WHOLE)[0] == WHOLE[0]


def test_a_row_of_the_plan_is_what_the_matrix_is_given_and_names_the_same_cell() -> None:
    for entry in WHOLE[:3]:
        given_options = arguments_of(entry)
        [candidate] = matrix_plan.candidates(
            [given_options["--transformers"]],
            [],
            table(),
            torch=[given_options[name] for name in ["--torch"] if name in given_options],
            python=given_options["--python"],
        )
        assert candidate.spec is not None
        assert (candidate.spec.id, candidate.name) == (entry.cell, entry.name)
        assert (given_options["--failures"], given_options["--trial-set"]) == (entry.failures, entry.trial_set)


def test_a_torch_that_was_asked_for_is_passed_on_and_one_of_its_time_by_that_name() -> None:
    planned = planning.plan(["4.53.3"], CHOSEN, table(), torch=["2.12.0", "of-its-time"], python="3.11")
    assert [arguments_of(entry).get("--torch") for entry in planned] == ["2.12.0", "of-its-time"]
    assert all(arguments_of(entry)["--transformers"] == "4.53.3" for entry in planned)
    assert (planned[0].torch, planned[0].python, planned[0].device) == ("2.12.0", "3.11", "cpu")


def test_a_desk_without_torch_leaves_torch_to_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.cells.spec.desk_torch", lambda: "")
    [entry] = planning.plan(["4.53.3"], CHOSEN, table())
    assert (entry.torch, "--torch" in arguments_of(entry)) == ("", False)
    assert re.fullmatch(r"3\.\d+", entry.python)


def test_main_is_planned_as_an_environment_that_is_there_with_all_else_left_to_it() -> None:
    main = WHOLE[-1]
    assert (main.cell, main.name, main.transformers, main.device) == ("main", "environment main", "main", "cpu")
    assert (main.torch, main.python, main.exclude_newer) == ("", "", "")
    assert arguments_of(main) == {
        "--environment": "main",
        "--failures": "whisper-double-backward",
        "--trial-set": "reference",
    }


def test_a_plan_for_a_gpu_names_the_device_and_has_the_trials_of_that_device() -> None:
    planned = planning.plan(["4.53.3"], CHOSEN, table(), device="cuda", main=True)
    assert {entry.device for entry in planned} == {"cuda"}
    assert {entry.trials for entry in planned} == {len(CHOSEN.on("cuda"))}
    assert {entry.digest for entry in planned} == {planning.digest(trial.id for trial in CHOSEN.on("cuda"))}


def test_a_set_of_trials_is_known_by_its_members_in_any_order() -> None:
    assert planning.digest(["a", "b"]) == planning.digest(["b", "a"])
    assert len({planning.digest(each) for each in (["a", "b"], ["a"], ["ab"], [])}) == 4
    assert len(planning.digest(["a"])) == 12


def test_the_newest_prerelease_is_planned_where_it_is_asked_for() -> None:
    newest = table().of("transformers")[-1]
    planned = planning.plan([">=4.36"], CHOSEN, table(), prereleases=True)
    assert any("rc" in entry.transformers for entry in planned)
    assert newest.yanked or planned[-1].transformers == newest.version


@given(st.integers(1, 60))
def test_shards_are_disjoint_together_the_whole_and_as_even_as_can_be(of: int) -> None:
    parts = [Shard(number, of).part(WHOLE) for number in range(1, of + 1)]
    assert sorted(entry.cell for part in parts for entry in part) == sorted(entry.cell for entry in WHOLE)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "1", "a/b", "1/2/3", "-1/2", ""])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="say for example 1/4"):
        shard(text)


def test_one_shard_of_two_on_the_command_line_is_half_of_it_as_commands() -> None:
    halves = [repro("--commands", *WHISPER, "--trial-set", "reference", "--shard", f"{n}/2")[1] for n in (1, 2)]
    lines = [line for half in halves for line in half.splitlines()]
    assert sorted(lines) == sorted(f"repro matrix {entry.arguments}" for entry in WHOLE[:-1])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--transformers", "4.99"], "there is no transformers 4.99"),
        (["--shard", "5/4"], "no shard"),
        (["--device", "tpu"], "no device"),
        (["--trial-set", "most"], "no trial set"),
        (["--python", "3"], "is no Python"),
        (["--json", "--commands"], "exclude each other"),
    ],
)
def test_a_wish_that_makes_no_sense_is_wrong_usage(words: list[str], says: str) -> None:
    code, told = repro(*words)
    assert code == 2
    assert says in told


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@settings(max_examples=40)
@given(VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(st.sampled_from(["name", "trials", "x"]), VALUES))
def test_a_file_that_is_no_plan_is_refused_by_name(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "no-plan"
    for content in (document, {"include": [document]}):
        path.write_text(json.dumps(content))
        with pytest.raises(PlanError, match="no-plan"):
            planning.read(path)


def test_what_is_wrong_with_a_plan_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    [good, *_] = planning.as_matrix(WHOLE)["include"]
    for document, says in (
        (
            {"include": [good, {**good, "trials": True}]},
            "plan.json, cell 2: 'trials' is missing, or is not of type int",
        ),
        ({"include": [{**good, "name": 7}]}, "plan.json, cell 1: 'name' is missing, or is not of type str"),
        ({"exclude": []}, 'plan.json is no plan: it has no list "include"'),
        ([], 'plan.json is no plan: it has no list "include"'),
    ):
        path.write_text(json.dumps(document))
        with pytest.raises(PlanError, match=re.escape(says)):
            planning.read(path)
    path.write_text("{")
    with pytest.raises(PlanError, match=r"plan\.json cannot be read as a plan: Expecting"):
        planning.read(path)
    with pytest.raises(PlanError, match=r"cannot be read as a plan: .*Is a directory"):
        planning.read(tmp_path)


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(planning.as_matrix(WHOLE)))
    assert planning.read(path) == WHOLE
    with pytest.raises(PlanError, match=r"no plan at .*repro plan --json"):
        planning.read(tmp_path / "nowhere.json")


def test_planning_imports_no_torch() -> None:
    code = "import sys, repro.nightly.books, repro.nightly.tracking; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
