"""The pytest plugin: trials are chosen as asked, limits end what must be ended, and a missing GPU is never green."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from repro.observe.limits import EXIT_CODE
from repro.store.reader import read

SUITE = Path(__file__).parents[1] / "failures"
ROOT = Path(__file__).parents[2]
FAST = "whisper-double-backward.model.44136fa355"
"""The plain run of the bare model: `{}` is what its id is made of."""


def run_pytest(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_a_trial_is_started_and_observed_in_a_file_that_names_its_cell(tmp_path: Path) -> None:
    run = run_pytest(str(SUITE), "--trial", FAST, "--results", str(tmp_path))
    assert run.returncode == 0, run.stdout
    records = read(tmp_path).records
    assert [r["kind"] for r in records] == ["cell", "mechanism", "started", "observation"]
    assert {r["cell"] for r in records} == {records[0]["cell"]}
    assert records[0]["resolved"]["torch"] == records[0]["torch"]
    assert records[-1]["end"] == "completed"
    assert records[-1]["trial"] == records[-2]["trial"] == FAST


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trial", "whisper-double-backward.model.nothing"], "no such trial"),
        (["--failures", "whisper-double"], "Did you mean whisper-double-backward"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_of_usage(arguments: list[str], message: str) -> None:
    run = run_pytest(str(SUITE), "--collect-only", *arguments)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in run.stdout + run.stderr


GPU_TEST = """
    import pytest

    @pytest.mark.gpu
    def test_on_gpu():
        pass
"""


@pytest.fixture
def gpu_suite(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(textwrap.dedent(GPU_TEST))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-m", "gpu"], pytest.ExitCode.USAGE_ERROR),
        (["-m", "gpu and not slow"], pytest.ExitCode.USAGE_ERROR),
        (["-m", "gpu", "--gpu=optional"], pytest.ExitCode.OK),
        (["-m", "not gpu"], pytest.ExitCode.NO_TESTS_COLLECTED),
        ([], pytest.ExitCode.OK),
        (["-m", "gpu", "-k", "nothing_of_this_name"], pytest.ExitCode.NO_TESTS_COLLECTED),
    ],
)
def test_asking_for_a_gpu_where_there_is_none_is_an_error(gpu_suite: Path, arguments: list[str], code: int) -> None:
    hidden = ["-p", "repro.observe.plugin", "-c", "/dev/null", "--rootdir", str(gpu_suite)]
    import os

    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *hidden, *arguments, str(gpu_suite)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == code, run.stdout + run.stderr
    if code == pytest.ExitCode.USAGE_ERROR:
        assert "there is no CUDA device here" in run.stdout + run.stderr


SKIPS_ITSELF = """
    import pytest

    @pytest.mark.gpu
    def test_on_gpu():
        pytest.skip("not today")
"""
HAS_CUDA = "from repro.observe import plugin\nplugin._has_cuda = lambda: True\n"


@pytest.mark.parametrize(
    ("arguments", "says"), [([], True), (["-k", "nothing_of_this_name", "-n", "1"], True), (["--gpu=optional"], False)]
)
def test_asking_for_a_gpu_and_running_nothing_is_an_error_that_says_so(
    tmp_path: Path, arguments: list[str], says: bool
) -> None:
    (tmp_path / "conftest.py").write_text(HAS_CUDA)
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SKIPS_ITSELF))
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "repro.observe.plugin",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "pytest", *words, "-m", "gpu", *arguments, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ("-m gpu ran no test" in run.stdout) == says, run.stdout + run.stderr
    assert run.returncode == (pytest.ExitCode.NO_TESTS_COLLECTED if says else pytest.ExitCode.OK)


LIMITED = """
    import sys, time
    from repro.observe.limits import Limits, enforced

    def last_words(end, detail):
        print("last words:", end, flush=True)

    kept = []
    with enforced(Limits(seconds={seconds}, bytes={bytes}), last_words):
        {body}
    print("got through")
"""


def limited(body: str, seconds: float = 60, size: int = 2**33) -> Any:
    program = textwrap.dedent(LIMITED).format(seconds=seconds, bytes=size, body=body)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_a_trial_that_hangs_is_ended_and_says_so() -> None:
    run = limited("time.sleep(50)", seconds=0.3)
    assert (run.returncode, run.stdout.strip()) == (EXIT_CODE, "last words: timed out")


def test_a_trial_that_eats_memory_is_ended_and_says_so() -> None:
    run = limited("\n    while True: kept.append(bytearray(2**22)); time.sleep(0.001)", size=2**28)
    assert (run.returncode, run.stdout.strip()) == (EXIT_CODE, "last words: over its memory limit")


def test_a_trial_within_its_limits_is_left_alone() -> None:
    run = limited("time.sleep(0.3)")
    assert (run.returncode, run.stdout.strip()) == (0, "got through")
