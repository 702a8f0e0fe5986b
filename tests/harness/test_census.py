"""The census: that it sees each fault for what it is, and that no model can take it down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from repro.census import compare, desk, families, verdicts
from repro.census.supervisor import Limits, Supervisor, resident
from repro.commands import Stop, build_app
from repro.store.records import record
from repro.store.writer import Writer

MODELS = "tests.harness.census_models.{}"


MEMORY = 1_300_000_000

Seen = dict[tuple[str, bool], dict[str, Any]]


def judged(module: str) -> Seen:
    """Judge all models of a module, under limits small enough to be met."""
    with Supervisor(Limits(seconds=10.0, memory=MEMORY)) as supervisor:
        facts = list(supervisor.judge(MODELS.format(module), every_class=True))
    return {(item["class"], item["use_reentrant"]): item for item in facts}


@pytest.fixture(scope="module")
def seen() -> Seen:
    """Judge the plain models once: one process, and another after the last."""
    return judged("plain")


@pytest.mark.parametrize(
    ("name", "non_reentrant", "reentrant"),
    [
        ("SoundModel", "equal", "equal"),
        ("PrintsModel", "equal", "equal"),
        ("KeywordModel", "equal", "raises"),
        ("CutOffModel", "equal", "gradients missing"),
        ("DeafModel", "not engaged", "not engaged"),
        ("DoubledModel", "gradients wrong", "gradients wrong"),
        ("SegfaultModel", "crashed", "crashed"),
        ("RecursesModel", "not built", "not built"),
        ("ReadsInputModel", "not built", "not built"),
    ],
)
def test_each_model_is_seen_for_what_it_is(seen: Any, name: str, non_reentrant: str, reentrant: str) -> None:
    assert verdicts.verdict(seen[name, False]) == non_reentrant, seen[name, False]
    assert verdicts.verdict(seen[name, True]) == reentrant, seen[name, True]


def test_a_keyword_tensor_is_named_and_its_guilt_proved(seen: Any) -> None:
    detail = verdicts.detail(seen["KeywordModel", True])
    assert "second time" in detail
    assert "proved: _Layer: bias kept its live graph" in detail


def test_a_layer_cut_off_from_the_graph_is_named_and_proved(seen: Any) -> None:
    detail = verdicts.detail(seen["CutOffModel", True])
    assert "layers.0.linear" in detail
    assert "proved: no argument of _Layer needs a gradient" in detail


def test_what_ended_a_model_is_said(seen: Any) -> None:
    assert "SIGSEGV" in verdicts.detail(seen["SegfaultModel", False])
    assert "not run" in verdicts.detail(seen["SegfaultModel", True])
    assert "EOF" in verdicts.detail(seen["ReadsInputModel", False])
    assert "RecursionError" in verdicts.detail(seen["RecursesModel", False])


@pytest.mark.slow
def test_only_what_ends_a_model_under_checkpointing_counts_against_its_checkpointing() -> None:
    seen = judged("fatal")
    assert verdicts.verdict(seen["HangsModel", False]) == "timed out"
    assert "10 s" in verdicts.detail(seen["HangsModel", False])
    assert verdicts.verdict(seen["EatsMemoryModel", False]) == "over its memory limit"
    assert max(facts["peak_rss"] for facts in seen.values()) <= MEMORY
    for name in ("SegfaultsAnywayModel", "EatsMemoryAnywayModel"):
        assert verdicts.verdict(seen[name, False]) == "not built"
        assert verdicts.detail(seen[name, False]).startswith("without checkpointing: ")


def test_engagement_is_counted(seen: Any) -> None:
    assert seen["SoundModel", True]["engaged"] == 2
    assert seen["SoundModel", True]["took_effect"]
    assert seen["DeafModel", True]["engaged"] == 0


def test_speech_families_are_found_without_importing_the_library() -> None:
    speech = families.speech_families()
    assert {"whisper", "wav2vec2", "hubert", "wavlm", "speecht5", "speech_to_text"} <= set(speech)
    assert not {"bert", "llama", "vit"} & set(speech)
    assert set(speech) < set(families.all_families())


def test_the_resident_size_of_a_process_that_is_gone_is_nothing() -> None:
    assert resident(2**22 - 3) == 0


@pytest.mark.parametrize(
    ("reason", "package"),
    [
        ("small: building: ModuleNotFoundError: No module named 'scipy'", "scipy"),
        ("small: building: ImportError: TimmWrapperModel requires the timm library but it was not found", "timm"),
        ("small: input_ids: ValueError: too many values to unpack", ""),
    ],
)
def test_a_package_that_is_not_installed_is_told_from_a_model_that_does_not_build(reason: str, package: str) -> None:
    assert verdicts.lacking({"end": "not built", "reason": reason}) == package


FACTS = st.fixed_dictionaries(
    {
        "end": st.sampled_from(["completed", "raised", "crashed", "timed out", "over its memory limit", "not built"]),
        "engaged": st.integers(0, 9),
        "exception": st.none() | st.fixed_dictionaries({"type": st.just("RuntimeError"), "message": st.text()}),
        "gradients": st.fixed_dictionaries(
            {
                "parameters": st.integers(1, 9),
                "missing": st.just(0),
                "missing_names": st.just([]),
                "wrong": st.integers(0, 3),
                "not_finite": st.integers(0, 1),
                "worst_ratio": st.floats(0, 10),
                "worst_name": st.text(max_size=3),
            }
        ),
    }
)


@settings(deadline=None, max_examples=50)
@given(FACTS)
def test_every_set_of_facts_has_a_verdict_and_only_sound_ones_are_equal(facts: dict[str, Any]) -> None:
    judged = verdicts.verdict(facts)
    assert judged in verdicts.VERDICTS
    sound = facts["gradients"]["worst_ratio"] <= 1.0 and not facts["gradients"]["not_finite"]
    assert (judged == "equal") == (facts["end"] == "completed" and facts["engaged"] > 0 and sound)


VERDICT = st.sampled_from(verdicts.VERDICTS)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.sampled_from("abcd"), VERDICT), st.dictionaries(st.sampled_from("abcd"), VERDICT))
def test_comparing_keeps_every_class_and_tells_faults_that_are_new(here: dict[str, str], there: dict[str, str]) -> None:
    def rows(of: dict[str, str]) -> list[dict[str, Any]]:
        return [{"model": name, "class": name, "use_reentrant": True, "verdict": v} for name, v in of.items()]

    joined = {row["model"]: row for row in compare.against(rows(here), rows(there))}
    assert set(joined) == set(here) | set(there)
    for name, row in joined.items():
        new = here.get(name) in verdicts.FAULTS and there.get(name) == "equal"
        assert (row["change"] == "new fault") == new
        assert (row["change"] == "same") == (here.get(name) == there.get(name))


def test_an_environment_without_transformers_is_told_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(desk.CensusError, match="neither a Python nor a virtual environment"):
        desk.environment(tmp_path)


@pytest.mark.slow
def test_the_census_runs_through_pytest_and_does_not_run_twice_what_is_stored(tmp_path: Path) -> None:
    where = desk.environment(None)
    plan = desk.Plan(("sew_d",), every_class=True, jobs=1, seconds=60, gibibytes=4)
    desk.run(where, plan, tmp_path)
    records = desk.stored(tmp_path)
    rows = compare.rows(records, where.transformers)
    assert {row["class"] for row in rows} >= {"SEWDForCTC", "SEWDModel"}
    assert all(row["engaged"] for row in rows)
    assert desk.finished(records, where.transformers, every_class=True) == {"sew_d"}


@pytest.mark.slow
def test_a_family_without_a_class_to_judge_is_not_run_again_and_is_no_row(tmp_path: Path) -> None:
    where = desk.environment(None)
    desk.run(where, desk.Plan(("dab_detr",), every_class=True, jobs=1, seconds=60, gibibytes=4), tmp_path)
    records = desk.stored(tmp_path)
    assert compare.rows(records, where.transformers) == []
    assert desk.finished(records, where.transformers, every_class=True) == {"dab_detr"}


@pytest.mark.slow
def test_an_interrupt_ends_the_census_with_a_message_and_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "repro", "census", "--model", "sew_d", "--results", str(tmp_path)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    running.stderr.readline()
    children: list[psutil.Process] = []
    for _ in range(600):
        children = psutil.Process(running.pid).children(recursive=True)
        if any("repro.census.worker" in child.cmdline() for child in children):
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) == 130
    assert "the same command goes on" in running.stderr.read()
    _, alive = psutil.wait_procs(children, timeout=15)
    assert not alive


def test_a_torchvision_of_another_build_than_torch_can_be_imported(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    fakes = "\n".join(f"torch.library.register_fake('torchvision::{name}')(print)" for name in ("nms", "qnms"))
    (package / "__init__.py").write_text(f"import torch\n{fakes}\n")
    told = "from repro.census import worker; worker._let_torchvision_be_imported(); import torchvision"
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    for code, returned in (("import torchvision", 1), (told, 0)):
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == returned, done.stderr


def stored(results: Path, release: str, *, sound: bool, name: str = "SEWDModel") -> None:
    """Store what a census of one class of SEW-D would find in a release."""
    gradients: dict[str, Any] = {"parameters": 3, "missing": 0, "wrong": 0, "not_finite": 0, "worst_name": "weight"}
    gradients["worst_ratio"] = 0.0 if sound else 9.0
    about = {"family": "sew_d", "model": "sew-d", "class": name, "every_class": True, "transformers": release}
    writer = Writer(results, "census")
    for use_reentrant in (False, True):
        facts = {"use_reentrant": use_reentrant, "end": "completed", "engaged": 2}
        writer.append(record("census", "cell", **about, **facts, gradients=gradients))
    writer.close()


def census(results: Path, *words: str) -> Any:
    return CliRunner().invoke(build_app("census"), ["census", "--model", "sew_d", "--results", str(results), *words])


@pytest.mark.parametrize(("sound", "code", "change"), [(True, 0, "same"), (False, 1, "new fault")])
def test_a_release_is_compared_with_another_and_a_new_fault_ends_with_1(
    tmp_path: Path, sound: bool, code: int, change: str
) -> None:
    stored(tmp_path, "4.0.0", sound=True)
    stored(tmp_path, families.transformers_version(), sound=sound)
    done = census(tmp_path, "--against", "4.0.0", "--json")
    assert done.exit_code == code, done.exception
    rows = json.loads(done.stdout)
    assert [(row["class"], row["against"], row["change"]) for row in rows] == [("SEWDModel", "equal", change)] * 2
    assert set(rows[0]) >= {"model", "class", "use_reentrant", "verdict", "detail", "transformers"}


@pytest.mark.parametrize(("before", "said"), [("4.0.0", "Against 4.0.0: 2 same"), ("4.1.0", "Against 4.1.0: 2 added")])
def test_what_is_sound_and_new_or_the_same_is_counted_and_not_listed(tmp_path: Path, before: str, said: str) -> None:
    stored(tmp_path, "4.0.0", sound=True)
    stored(tmp_path, "4.1.0", sound=True, name="SEWDForCTC")
    stored(tmp_path, families.transformers_version(), sound=True)
    done = census(tmp_path, "--against", before)
    assert said in done.stdout
    assert "SEWDModel" not in done.stdout


def test_a_release_without_results_cannot_be_compared_with_and_the_message_says_which_can(tmp_path: Path) -> None:
    stored(tmp_path, "4.0.0", sound=True)
    done = census(tmp_path, "--against", "4.1.0")
    assert isinstance(done.exception, Stop)
    assert done.exception.code == 3
    assert "there: 4.0.0" in str(done.exception)


def test_a_word_that_is_no_model_family_is_refused_with_those_near_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(build_app("census"), ["census", "--model", "wisper", "--results", str(tmp_path)])
    assert isinstance(done.exception, Stop)
    assert "near it: whisper" in str(done.exception)
