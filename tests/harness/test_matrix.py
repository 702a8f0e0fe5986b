"""The matrix: what it plans, and what it makes of trials that hang, crash, eat memory, and of being interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from threading import Event

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog import find
from repro.cells.cache import Cache
from repro.cells.cell import CellError
from repro.cells.releases import Table, table
from repro.matrix import attempt as attempts
from repro.matrix import plan as planning
from repro.matrix.attempt import Setting
from repro.matrix.command import chosen_failures
from repro.matrix.limits import Limits, parse_bytes
from repro.matrix.plan import Candidate, Chosen
from repro.matrix.progress import Progress
from repro.matrix.run import check_writable, run
from repro.matrix.summary import exit_code, summarize
from repro.matrix.work import Worked
from repro.store.reader import read
from repro.store.records import Record
from repro.store.writer import ResultsError, Writer

from .standin import CELL, FAILURE, Few, Standin


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    made = Standin(tmp_path)
    made.act()
    return made


def test_a_well_behaved_cell_is_done_in_one_go(standin: Standin) -> None:
    assert standin.work() == Worked(as_declared=True)
    assert standin.ends() == ["completed"] * 6


def test_an_outcome_that_pytest_fails_is_not_as_declared(standin: Standin) -> None:
    standin.act("train", "differ")
    assert standin.work() == Worked(as_declared=False)
    assert standin.ends() == ["completed"] * 6


@pytest.mark.parametrize("workers", [1, 2])
def test_crashes_hangs_and_memory_eaters_are_told_apart_and_the_others_go_on(
    standin: Standin, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "GRACE_SECONDS", 0.0)
    standin.act("train", "crash", "hang", "eat", "train", "train")
    assert not standin.work(Limits(trial_seconds=5.0, trial_bytes=300 * 2**20), workers).as_declared
    assert standin.ends() == [
        "completed", "crashed", "timed out", "over its memory limit", "completed", "completed",
    ]  # fmt: skip
    assert max(Counter(record["trial"] for record in standin.observed()).values()) == 1
    details = {record["end"]: record.get("detail", "") for record in standin.observed()}
    assert "Segmentation fault" in details["crashed"]
    assert "MiB resident" in details["over its memory limit"]


def test_a_process_that_leaves_without_a_word_is_a_crash_with_its_exit_code(standin: Standin) -> None:
    standin.act("leave")
    standin.work()
    assert standin.ends() == ["crashed", *["completed"] * 5]
    assert "exit code 5" in next(r["detail"] for r in standin.observed() if r["end"] == "crashed")


def test_a_cell_that_takes_too_much_memory_loses_its_largest_trial(standin: Standin) -> None:
    standin.act("eat")
    standin.work(Limits(trial_bytes=2**40, cell_bytes=500 * 2**20))
    assert standin.ends() == ["over its memory limit", *["completed"] * 5]


def test_a_cell_past_its_time_fails_and_keeps_what_it_has(standin: Standin) -> None:
    standin.act("train", "hang")
    with pytest.raises(CellError, match=r"the cell's limit of 4 s was reached; 4 trials were not run"):
        standin.work(Limits(cell_seconds=4.0))
    assert standin.ends() == ["completed", "timed out", *["missing"] * 4]


def test_an_interrupt_keeps_what_was_observed_and_the_next_run_does_the_rest_once(standin: Standin) -> None:
    standin.act("train", "train", "hang")
    stop = Event()

    def stop_in_the_third(record: Record) -> None:
        if record["kind"] == "started" and record["trial"] == standin.trials[2].id:
            stop.set()

    assert standin.work(stop=stop, seen=stop_in_the_third).interrupted
    assert standin.ends() == ["completed", "completed", *["missing"] * 4]
    standin.act()
    assert not standin.work().interrupted
    assert standin.ends() == ["completed"] * 6
    assert set(Counter(record["trial"] for record in standin.observed()).values()) == {1}


def test_a_suite_that_cannot_start_fails_the_cell_with_its_own_words(standin: Standin) -> None:
    (standin.suite / "conftest.py").write_text("import no_such_library\n")
    with pytest.raises(CellError, match="No module named 'no_such_library'") as raised:
        standin.work()
    assert raised.value.stage == "pytest"


def test_results_that_cannot_be_written_stop_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "results", Path("/proc/no-results-here")):
        with pytest.raises(ResultsError, match=r"cannot write results to .*--results"):
            check_writable(place)


PROGRAM = """
    import resource
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from repro.__main__ import _end
    from repro.catalog import find
    from repro.commands import Stop
    from repro.matrix.command import execute
    from repro.matrix.plan import Candidate, Planned, remaining, observations
    from repro.store.writer import ResultsError
    from standin import CELL, FAILURE, Few, Standin

    standin = Standin.__new__(Standin)
    standin.suite, standin.results = Path(sys.argv[1], "suite"), Path(sys.argv[1], "results")
    again = sys.argv[3:] == ["again"]
    if len(sys.argv) > 3 and not again:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
    chosen = Few((find(FAILURE),), "reference")
    left, done = remaining(CELL, chosen, observations(standin.results))
    planned = Planned(Candidate("the stand-in", python=CELL.python), CELL, left, done)
    try:
        execute([planned], chosen, standin.setting(), jobs=1, again=again, as_json=True)
    except Stop as stop:
        _end(str(stop), stop.code)
    except ResultsError as error:
        _end(str(error), 3)
"""


def start(standin: Standin, *words: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(standin.suite.parent), str(Path(__file__).parent)]
    return subprocess.Popen([*program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_observed(standin: Standin, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(standin.observed()) < count:
        assert time.monotonic() < deadline, "nothing was observed"
        time.sleep(0.1)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize(("kill", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_matrix_that_is_killed_leaves_no_process_and_goes_on_where_it_stopped(
    standin: Standin, kill: signal.Signals, code: int
) -> None:
    standin.act("train", "train", "hang")
    process = start(standin)
    until_observed(standin, 2)
    children = family(process)
    assert children
    process.send_signal(kill)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    if kill != signal.SIGKILL:
        assert "the same command goes on where this one stopped" in said
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
    standin.act()
    again = start(standin)
    out, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    [cell] = json.loads(out)["cells"]
    assert (cell["ran"], cell["outcomes"]) == (4, {"trains": 6})
    assert set(Counter(record["trial"] for record in standin.observed()).values()) == {1}


def test_an_interrupted_run_that_takes_up_nothing_does_not_promise_to(standin: Standin) -> None:
    standin.act("train", "hang")
    process = start(standin, "again")
    until_observed(standin, 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command begins anew" in said


def test_a_full_disk_is_said_and_what_was_stored_before_stays(standin: Standin) -> None:
    standin.act(*["wordy"] * 6)
    process = start(standin, "1000")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "cannot write results" in said
    process = start(standin, "4500")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "cannot write results" in said
    assert standin.ends() == ["missing"] * 6
    assert read(standin.results).damage == ()


def test_the_summary_counts_outcomes_and_names_the_command_that_reruns_a_mismatch(standin: Standin) -> None:
    standin.act("train", "crash")
    chosen = Few((find(FAILURE),), "reference")
    planned = planning.Planned(Candidate("the stand-in", python=CELL.python), CELL, tuple(standin.trials), 0)
    broken = planning.Planned(Candidate("broken"), None, (), 0, CellError("resolve", "no such thing"))
    with Progress(live=False) as progress:
        runs = run([planned, broken], chosen, standin.setting(), progress, cache=Cache.default(), jobs=2, again=False)
    worked, failed = summarize(runs, chosen, standin.results)
    assert worked.outcomes == {"trains": 5, "crashed": 1}
    [mismatch] = worked.mismatches
    assert mismatch.rerun == f"repro run {FAILURE} --trial {standin.trials[1].id} --environment {sys.executable}"
    assert failed.trouble == "no such thing"
    assert exit_code(runs, [worked, failed]) == 1
    assert exit_code(runs[1:], [failed]) == 3
    [record] = read(standin.results).of_kind("cell failed")
    assert (record["requested"], record["stage"], record["reason"]) == ("broken", "resolve", "no such thing")


def test_a_failure_of_pytest_that_the_results_do_not_show_is_not_green(standin: Standin) -> None:
    standin.act("differ")
    process = start(standin)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "pytest failed in the stand-in, though every stored outcome is as declared" in said


TRIALS = Chosen((find(FAILURE),), "reference").on("cpu")


@given(st.sets(st.sampled_from([trial.id for trial in TRIALS])))
def test_what_is_left_and_what_is_observed_are_all_trials(known: set[str]) -> None:
    left, done = planning.remaining(CELL, Chosen((find(FAILURE),), "reference"), {"standin": known})
    assert {trial.id for trial in left} | known == {trial.id for trial in TRIALS}
    assert done == len(known)
    assert len(left) + done == len(TRIALS)


def test_what_could_not_be_run_is_run_again(standin: Standin) -> None:
    from repro.store.records import record

    writer = Writer(standin.results)
    for trial, end in zip(standin.trials, ("could not run", "crashed", "completed"), strict=False):
        writer.append(record("observation", "standin", failure=FAILURE, trial=trial.id, end=end))
    assert planning.observations(standin.results) == {"standin": {trial.id for trial in standin.trials[1:3]}}


@pytest.mark.parametrize(("text", "size"), [("6GiB", 6 * 2**30), ("500M", 500 * 2**20), ("1.5k", 1536), ("7", 7)])
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1G", "0", "5 apples"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


def repro(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "REPRO_CELLS": str(home / "cells")}
    words = (*words, "--results", str(home / "results"))
    return subprocess.run([sys.executable, "-m", "repro", *words], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("matrix", "--failures", "whisper-double-backwards"), "Did you mean whisper-double-backward?"),
        (("matrix", "--transformers", "4.52.9"), "Nearest: 4.52.4 and 4.53.0"),
        (("matrix", "--transformers", ">=4.50,<4.49"), "no transformers release is within"),
        (("matrix", "--environment", "nowhere"), "does not exist"),
        (("matrix", "--trial-set", "most"), "no trial set 'most'"),
        (("matrix", "--trial-memory", "lots"), "is no size"),
        (("run", "whisper-double-backwards"), "Did you mean whisper-double-backward?"),
        (("run", FAILURE, "--scope", "moon"), "no scope 'moon'"),
        (("run", FAILURE, "--environment", "nowhere"), "does not exist"),
    ],
)
def test_wrong_usage_is_code_2_and_says_what_would_be_right(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = repro(*words, home=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_shows_the_plan_and_touches_nothing(tmp_path: Path) -> None:
    words = ("matrix", "--transformers", "4.36.2,4.53.3", "--failures", FAILURE, "--trial-set", "reference")
    done = repro(*words, "--dry-run", "--json", home=tmp_path)
    assert done.returncode == 0
    plan = json.loads(done.stdout)
    assert [(cell["transformers"], cell["state"]) for cell in plan["cells"]] == [
        ("4.36.2", "to build"), ("4.53.3", "to build"),
    ]  # fmt: skip
    assert all(cell["trials"] == len(TRIALS) for cell in plan["cells"])
    assert plan["seconds"] > 0
    assert plan["bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_offline_names_what_is_not_cached_and_ends_with_3(tmp_path: Path) -> None:
    done = repro("matrix", "--transformers", "4.53.3", "--offline", "--trial-set", "reference", home=tmp_path)
    assert done.returncode == 3
    assert "transformers 4.53.3 could not run: it is not cached" in done.stderr
    [record] = read(tmp_path / "results").of_kind("cell failed")
    assert record["requested"] == "transformers 4.53.3"


@pytest.mark.slow
def test_a_release_before_the_failure_and_one_with_it_differ_in_real_cells(tmp_path: Path) -> None:
    failure = find(FAILURE)
    reported = failure.trial(failure.reported).id
    plain = failure.trial(failure.configuration()).id
    [before, affected] = planning.candidates(["4.52.4,4.53.3"], [], planning_table(), torch=())
    chosen = Chosen((failure,), "reference", None, (reported, plain))
    cache = Cache.default()
    with Progress(live=False) as progress:
        planned = planning.plan([before, affected], chosen, tmp_path, cache=cache)
        runs = run(
            planned, chosen, Setting(tmp_path, trial_set="reference"), progress, cache=cache, jobs=1, again=False
        )
    good, bad = summarize(runs, chosen, tmp_path)
    assert exit_code(runs, [good, bad]) == 0, (good, bad)
    assert good.outcomes == {"trains": 2}
    assert bad.outcomes == {"trains": 1, "double backward": 1}


def planning_table() -> Table:
    return table()


def test_failures_can_be_chosen_by_name_and_each_only_once() -> None:
    chosen = chosen_failures("whisper-double-backward,whisper-double-backward")
    assert [failure.id for failure in chosen] == ["whisper-double-backward"]
