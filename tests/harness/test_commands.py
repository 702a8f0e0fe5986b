"""The command line: starts without torch, speaks JSON, says what is wrong, and exits with a code that means it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repro.catalog import failures
from repro.store.records import SCHEMA, dump, record
from repro.store.reference import REFERENCE

ROOT = Path(__file__).parents[2]


def repro(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "repro", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_list_names_every_failure() -> None:
    rows = json.loads(repro("list", "--json").stdout)
    assert [row["failure"] for row in rows] == list(failures())
    plain = repro("list").stdout
    assert all(name in plain for name in failures())
    assert "\x1b" not in plain


@pytest.mark.parametrize("failure", failures())
def test_show_tells_the_whole_entry(failure: str) -> None:
    entry = json.loads(repro("show", failure, "--json").stdout)
    assert entry["failure"] == failure
    assert {c["claim"] for c in entry["claims"]} == {c.id for c in failures()[failure].claims}
    text = repro("show", failure).stdout
    assert all(claim.id in text for claim in failures()[failure].claims)


def test_an_unknown_failure_is_wrong_usage_and_offers_the_nearest() -> None:
    run = repro("show", "wisper-double-backward")
    assert run.returncode == 2
    assert "Did you mean whisper-double-backward?" in run.stderr
    assert "Traceback" not in run.stderr


def test_verdicts_without_results_could_not_run_and_says_what_to_do(tmp_path: Path) -> None:
    run = repro("verdicts", "whisper-double-backward", "--results", str(tmp_path / "none"))
    assert run.returncode == 3
    assert "repro matrix" in run.stderr


def test_verdicts_over_a_damaged_file_name_the_line_and_judge_the_rest(tmp_path: Path) -> None:
    whole = next(REFERENCE.glob("*.jsonl")).read_text("utf-8")
    (tmp_path / "x.jsonl").write_text("{broken\n" + whole, "utf-8")
    run = repro("verdicts", "whisper-double-backward", "--results", str(tmp_path), "--json")
    assert run.returncode == 0
    assert json.loads(run.stdout)
    assert "x.jsonl:1" in run.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_verdicts_without_an_observation_are_not_done(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "x.jsonl").write_text("{broken\n")
    run = repro("verdicts", "whisper-double-backward", "--results", str(tmp_path), *more)
    assert run.returncode == 3
    assert run.stdout == ("[]\n" if more else "")
    assert "holds no observation of whisper-double-backward" in run.stderr


def test_verdicts_from_a_newer_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(dump({**record("started", "c"), "schema": SCHEMA + 1}) + "\n")
    run = repro("verdicts", "whisper-double-backward", "--results", str(tmp_path))
    assert run.returncode == 3
    assert "newer version" in run.stderr


@pytest.mark.parametrize("command", [["list"], ["show", "whisper-double-backward"], ["--help"]])
def test_commands_that_run_no_trials_start_without_torch(command: list[str]) -> None:
    program = (
        "import sys; sys.argv = ['repro', *sys.argv[1:]]\n"
        "from repro.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.rstrip().endswith("HEAVY []")


@pytest.mark.parametrize("command", ["list", "show", "verdicts"])
def test_every_command_explains_itself(command: str) -> None:
    run = repro(command, "--help")
    assert run.returncode == 0
    assert "--json" in run.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("show", "whisper-double-backward")])
def test_output_that_cannot_be_written_is_one_message(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "repro", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (3, "repro: the output: No space left on device\n")


def test_a_command_whose_output_was_closed_ends_as_ever() -> None:
    command = f"exec {sys.executable} -m repro list >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
