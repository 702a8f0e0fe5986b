"""Triage: evidence, versions, history and advice, the command, and hostile input."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.catalog import failures, find
from repro.store.records import record
from repro.store.writer import ResultsError, Writer
from repro.triage import environment, history, out_of_memory, plain, reading, requirements, versions
from repro.triage import settings as arguments
from repro.triage.answer import Answer, triage
from repro.triage.tracebacks import parse
from repro.vocabulary import Configuration

RECORDED = Path(__file__).parent / "tracebacks"
WHISPER = find("whisper-double-backward")


def answer(text: str, places: tuple[Path, ...] = (), known: versions.Versions | None = None) -> Answer:
    return triage(text, failures().values(), known, places)


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


DOUBLE = recorded("whisper-double-backward-4.53.3.txt")


# Which failure.


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.txt")), ids=lambda path: path.stem)
def test_recorded_tracebacks_are_recognised(path: Path) -> None:
    match = answer(path.read_text()).match
    assert match is not None
    failure = "callback-eval-oom" if path.stem.startswith("callback") else "whisper-double-backward"
    assert match.failure.id == failure
    assert (match.symptom.outcome == "predict refuses the argument") == ("predict-refuses" in path.stem)


def test_out_of_memory_in_an_evaluation_that_no_callback_started_is_not_ours() -> None:
    scheduled = trace((TRAINER, "train"), (TRAINER, "evaluate"), (PT_UTILS, "nested_concat"), end=OOM_TEXTS["2.6"])
    in_training = trace((TRAINER, "train"), (TRAINER, "training_step"), end=OOM_TEXTS["2.6"])
    for text in (scheduled, in_training, "    self.trainer.evaluate(self.trainer.train_dataset)\n" + in_training):
        told = answer(text)
        assert told.match is None
        assert told.nearest is None or told.nearest.difference


def test_advice_in_todays_spelling_is_said_in_todays_words() -> None:
    known = versions.Versions({"transformers": "5.24.0"}, {"transformers": "here"})
    told = answer(recorded("callback-eval-oom-5.24.0.txt"), (history.REFERENCE,), known).as_json()
    said = {advice["claim"]: advice["says"] for advice in (*told["refuted"], *told["depends"])}
    assert said["C4"].startswith('`eval_strategy="epoch"`')


def test_the_message_alone_is_not_enough_and_the_difference_is_said() -> None:
    told = answer(DOUBLE.strip().split("\n")[-1])
    assert told.match is None
    assert told.nearest is not None
    # Several failures bear this message, so that none of them may be named for it.
    assert told.nearest.failure.id.endswith("double-backward")
    assert told.nearest.difference


def test_the_message_with_the_script_is_enough() -> None:
    script = "model = WhisperForConditionalGeneration()\nargs = Arguments(gradient_checkpointing= True)\n"
    assert answer(script + DOUBLE.strip().split("\n")[-1]).match is not None


def _backward_twice() -> None:
    import torch

    loss = (torch.ones(2, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def _backward_twice_through_checkpoints() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    shared = torch.ones(2, requires_grad=True) ** 2
    hidden = torch.ones(2, requires_grad=True) * 1.0
    for _ in range(2):
        hidden = checkpoint(functools.partial(lambda h, other: h * other, other=shared), hidden, use_reentrant=True)
    hidden.sum().backward()


def raised_by(function: Callable[[], None]) -> str:
    with pytest.raises(RuntimeError, match="second time"):
        function()
    try:
        function()
    except RuntimeError:
        return traceback.format_exc()
    raise AssertionError("it raised before")


@pytest.mark.parametrize("function", [_backward_twice, _backward_twice_through_checkpoints])
def test_double_backwards_of_other_programs_are_not_ours(function: Callable[[], None]) -> None:
    told = answer(raised_by(function))
    assert told.match is None
    assert told.nearest is not None
    assert told.nearest.confidence > 0


def test_a_message_that_several_failures_share_names_all_of_them_and_none_for_sure() -> None:
    told = answer(DOUBLE.strip().split("\n")[-1])
    assert told.match is None
    named = {rival.failure.id for rival in told.rivals}
    assert named == {"sew-d-double-backward", "speecht5-double-backward", "whisper-double-backward"}
    assert len({rival.confidence for rival in told.rivals}) == 1
    assert len(told.as_json()["rivals"]) == 3


def test_whisper_in_the_text_does_not_make_a_backward_outside_of_checkpoints_ours() -> None:
    script = "from transformers import WhisperForConditionalGeneration\ngradient_checkpointing=True\n"
    told = answer(script + raised_by(_backward_twice))
    assert told.match is None
    assert told.nearest is not None
    assert "reentrant checkpoint" in told.nearest.difference


def test_another_programs_error_is_said_to_be_none_of_ours() -> None:
    told = answer('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    x\nKeyError: 1\n')
    assert told.match is None
    assert told.as_json()["failure"] is None
    assert told.nearest is not None
    assert told.nearest.confidence == 0


def test_a_message_that_a_terminal_wrapped_in_a_word_still_matches() -> None:
    message = DOUBLE.strip().split("\n")[-1]
    wrapped = "\n".join(message[at : at + 37] for at in range(0, len(message), 37))
    assert answer(DOUBLE.replace(message, wrapped)).match is not None


# Out of memory.

TRAINER = "/venv/lib/python3.10/site-packages/transformers/trainer.py"
PT_UTILS = "/venv/lib/python3.10/site-packages/transformers/trainer_pt_utils.py"
OOM_TEXTS = {
    "1.13": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total "
    "capacity; 13.49 GiB already allocated; 11.75 MiB free; 13.59 GiB reserved in total by PyTorch) If reserved memory",
    "1.12": "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; 13 GiB",
    "2.1": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of "
    "14.76 GiB of which 3.75 MiB is free. Process 12 has 14.75 GiB memory in use.",
    "2.6": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
    "14.76 GiB of which 3.75 MiB is free. Including non-PyTorch memory, this process has 14.75 GiB memory in use.",
}


def trace(*places: tuple[str, str], end: str) -> str:
    frames = "".join(f'  File "{file}", line 7, in {function}\n    x\n' for file, function in places)
    return f"Traceback (most recent call last):\n{frames}{end}\n"


@pytest.mark.parametrize("release", OOM_TEXTS)
def test_out_of_memory_of_every_torch_is_read(release: str) -> None:
    memory = out_of_memory.find(
        parse(trace(("train.py", "<module>"), (TRAINER, "training_step"), end=OOM_TEXTS[release]))
    )
    assert memory is not None
    assert (memory.device, memory.phase) == ("device", "training")
    assert memory.wanted_bytes == 20 << 20
    assert memory.capacity_bytes == int(14.76 * 2**30)


@pytest.mark.parametrize(
    ("places", "phase", "from_callback"),
    [
        ([(TRAINER, "train"), (TRAINER, "training_step"), (TRAINER, "compute_loss")], "training", False),
        ([(TRAINER, "train"), (TRAINER, "evaluate"), (PT_UTILS, "nested_concat")], "evaluation", False),
        ([(TRAINER, "train"), ("x/trainer_callback.py", "call_event"), (TRAINER, "evaluate")], "evaluation", True),
        ([(TRAINER, "train"), (TRAINER, "_maybe_log_save_evaluate"), (TRAINER, "evaluate")], "evaluation", False),
        ([("mine.py", "train"), ("mine.py", "evaluate")], "", False),
        ([], "", False),
    ],
)  # fmt: skip
def test_training_or_evaluation_is_told_by_frames_and_only_by_them(
    places: list[tuple[str, str]], phase: str, from_callback: bool
) -> None:
    memory = out_of_memory.find(parse(trace(*places, end=OOM_TEXTS["2.6"])))
    assert memory is not None
    assert (memory.phase, memory.from_callback) == (phase, from_callback)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 1234 bytes. Error code 12 (Cannot allocate memory)", "host"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.21 GiB for an array with shape (1,)", "host"),
        ("MemoryError", "host"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 8.02 GB, max allowed: 18.13 GB). Tried to allocate "
         "100.00 MB on private pool.", "device"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", "device"),
        ("RuntimeError: CUDA error: out of memory", "device"),
        ("step 10\nKilled", "host"),
        ("ChildFailedError: train.py FAILED (exitcode: -9)", "host"),
        ("ValueError: I killed it", None),
    ],
)  # fmt: skip
def test_device_or_host(text: str, device: str | None) -> None:
    memory = out_of_memory.find(parse(text))
    assert (memory.device if memory else None) == device


def test_out_of_memory_that_is_none_of_ours_is_still_explained() -> None:
    told = answer(trace((TRAINER, "evaluate"), (PT_UTILS, "nested_concat"), end=OOM_TEXTS["2.6"]))
    assert told.match is None or told.match.failure.id != "whisper-double-backward"
    assert told.out_of_memory is not None
    assert told.out_of_memory.phase == "evaluation"


# Arguments and versions.


def test_arguments_are_found_and_comments_are_not() -> None:
    lines = ["gradient_checkpointing=True,", "  #fp16=False,", "model.config.use_cache= False", "--bf16 True", "foo=1"]
    assert arguments.find(lines) == {"gradient_checkpointing": ("True",), "use_cache": ("False",), "bf16": ("True",)}


def test_what_a_message_recommends_was_not_set() -> None:
    assert "retain_graph" not in answer(DOUBLE).settings


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("- `transformers` version: 4.57.1", {"transformers": "4.57.1"}),
        ("- PyTorch version (GPU?): 2.8.0+cu126 (True)", {"torch": "2.8.0"}),
        ("transformers==4.53.0", {"transformers": "4.53.0"}),
        ("I use transformers 4.52.4 and torch 2.7.1", {"transformers": "4.52.4", "torch": "2.7.1"}),
        (r'  File "C:\Lib\transformers-4.51.3-py3.10.egg\transformers\trainer.py", line 1', {"transformers": "4.51.3"}),
        ('  File "/usr/lib/python3.10/a.py", line 1', {"python": "3.10"}),
        ("transformers>=4.40.0", {}),
        ("transformers==4.53.*", {}),
        ('"transformers_version": "4.27.0.dev0",', {}),
        ("torchvision 0.20.1", {}),
    ],
)  # fmt: skip
def test_versions_in_a_text(line: str, found: dict[str, str]) -> None:
    assert versions.find([line]).found == found


def test_versions_that_contradict_each_other_are_not_used() -> None:
    found = versions.find(["transformers 4.51.3 works", "transformers 4.53.0 does not", "torch 2.7", "torch 2.7.1"])
    assert found.found == {"torch": "2.7.1"}
    assert "several versions of transformers" in found.notes[0]


LISTS = {
    "freeze": "torch==2.7.1+cu126\ntransformers==4.53.0\n",
    "requirements": "# pins\ntorch == 2.7.1 ; python_version > '3.8'\n"
    "transformers[torch]==4.53.0  # why\n-r other.txt\n",
    "uv.lock": 'version = 1\n\n[[package]]\nname = "torch"\nversion = "2.7.1+cu126"\n\n'
    '[[package]]\nname = "transformers"\n'
    'version = "4.53.0"\ndependencies = [\n    { name = "numpy", version = "1" },\n]\n',
    "poetry.lock": '[[package]]\nname = "transformers"\nversion = "4.53.0"\n[package.dependencies]\nname = "2"\n'
    '[[package]]\nname = "torch"\nversion = "2.7.1"\n',
    "Pipfile.lock": '{\n  "default": {\n    "torch": {\n      "version": "==2.7.1"\n    },\n    "transformers": {\n'
    '      "hashes": [],\n      "version": "==4.53.0"\n    }\n  }\n}\n',
    "conda list": "# packages\ntorch           2.7.1     pypi_0    pypi\ntransformers  4.53.0  pyhd8_0  conda-forge\n",
    "conda env": "dependencies:\n  - torch=2.7.1=py311_0\n  - pip:\n      - transformers==4.53.0\n",
    "wheels": "torch @ https://download.example/whl/torch-2.7.1%2Bcu126-cp311-cp311-linux_x86_64.whl\n"
    "transformers @ file:///w/transformers-4.53.0-py3-none-any.whl#sha256=1\n",
    "git tag": "torch==2.7.1\ngit+https://github.com/huggingface/transformers.git@v4.53.0\n",
    "PowerShell": "torch==2.7.1\r\ntransformers==4.53.0\r\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_packages(name: str, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(LISTS[name].encode("utf-16" if name == "PowerShell" else "utf-8"))
    found = requirements.read(path).found
    assert {key: found.get(key) for key in ("torch", "transformers")} == {"torch": "2.7.1", "transformers": "4.53.0"}


@pytest.mark.parametrize(
    "line",
    [
        "-e git+https://github.com/huggingface/transformers.git@0123abc#egg=transformers",
        "transformers @ git+https://github.com/huggingface/transformers.git@main",
        "transformers>=4.40",
        "transformers",
    ],
)
def test_a_package_without_an_exact_version_is_noted_and_not_guessed(line: str, tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(f"torch==2.7.1\n{line}\n")
    found = requirements.read(path)
    assert "transformers" not in found.found
    assert any("transformers" in note for note in found.notes)


def test_an_environment_is_read_by_directory_and_by_python(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("transformers-4.53.0.dist-info", "torch-2.7.1+cu126.dist-info", "numpy-2.0.dist-info"):
        (packages / name).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    expected = {"transformers": "4.53.0", "torch": "2.7.1", "python": "3.11"}
    assert environment.read(tmp_path).found == environment.read(tmp_path / "bin" / "python").found == expected


def test_an_environment_without_transformers_says_so(tmp_path: Path) -> None:
    (tmp_path / "Lib" / "site-packages").mkdir(parents=True)
    assert "has no transformers" in environment.read(tmp_path).notes[0]


def test_no_environment_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(environment.NoEnvironmentError, match="site-packages"):
        environment.read(tmp_path)


def test_this_very_environment_is_read_as_it_is() -> None:
    from importlib.metadata import version

    assert environment.read(Path(sys.executable)).found["torch"] == version("torch").partition("+")[0]


# History and advice.


def observations(directory: Path, fails: dict[str, bool]) -> Path:
    """Write what would be stored had the reported run, and the run with a cure, been observed in these releases."""
    writer = Writer(directory)
    for release, failing in fails.items():
        _observe(writer, release, WHISPER.reported, failing)
        _observe(writer, release, WHISPER.reported.but(use_reentrant="False"), False)
        _observe(writer, release, WHISPER.reported.but(use_cache="untouched"), failing)
    writer.close()
    return directory


def _observe(writer: Writer, release: str, configuration: Configuration, failing: bool) -> None:
    facts: dict[str, Any] = {"end": "completed", "losses": [1.0], "loss_finite": True, "moved": True, "exception": None}
    if failing:
        message = "Trying to backward through the graph a second time"
        facts = {"end": "raised", "exception": {"type": "RuntimeError", "message": message, "bases": []}}
    trial = WHISPER.trial(configuration)
    cell = {"transformers": release, "torch": "2.7.1", "device": "cpu"}
    writer.append(
        record("observation", f"cell-{release}", failure=WHISPER.id, trial=trial.id, scope=trial.scope,
               configuration=dict(configuration), seconds=1.0, **cell, **facts)
    )  # fmt: skip


SEEN = {"4.51.3": False, "4.52.4": False, "4.53.0": True, "4.57.1": True, "5.0.0": False}


@pytest.mark.parametrize(
    ("release", "has_it", "because"),
    [
        ("4.53.0", True, "observed in transformers 4.53.0"),
        ("4.51.3", False, "observed in transformers 4.51.3"),
        ("4.55.2", True, "interpolated"),
        ("4.52.0", False, "interpolated"),
        ("4.52.9", None, "lies between"),
        ("4.30.0", None, "outside"),
        ("9.0", None, "outside"),
        ("nonsense", None, "not a version"),
        (None, None, "Seen in 4.53.0 to 4.57.1"),
    ],
)
def test_whether_a_release_has_it_is_observed_interpolated_or_not_known(
    release: str | None, has_it: bool | None, because: str, tmp_path: Path
) -> None:
    records, _ = history.records(WHISPER, [observations(tmp_path, SEEN)])
    state = history.affected(history.seen(WHISPER, records, "double backward"), release)
    assert state.answer is has_it
    assert because in state.because


def test_cures_and_refuted_advice_come_from_verdicts(tmp_path: Path) -> None:
    known = versions.Versions({"transformers": "4.55.0"}, {"transformers": "here"})
    told = answer(DOUBLE, (observations(tmp_path, SEEN),), known).as_json()
    assert told["affected"] is True
    assert [cure["claim"] for cure in told["cures"]] == ["use-reentrant-false", "pin-4.51.3", "upgrade"]
    assert "use_reentrant" in told["cures"][0]["code"]
    assert [advice["claim"] for advice in told["refuted"]] == ["W2"]
    assert told["prove"] == (
        "repro matrix --failures whisper-double-backward --transformers 4.55.0 --trial-set reference"
    )


def test_without_results_nothing_is_claimed(tmp_path: Path) -> None:
    tmp_path.joinpath("empty.jsonl").touch()
    told = answer(DOUBLE, (tmp_path,))
    assert told.match is not None
    assert (told.affected.answer, told.cures, told.refuted) == (None, (), ())


# Hostile input.


@pytest.mark.parametrize("content", [b"", b"  \n\t", b"\xff\xfe", b"\x00" * 100])
def test_empty_input_has_a_clear_message(content: bytes) -> None:
    with pytest.raises(reading.UnreadableError, match="empty"):
        reading.read(io.BytesIO(content))


def test_binary_input_has_a_clear_message() -> None:
    with pytest.raises(reading.UnreadableError, match="binary"):
        reading.read(io.BytesIO(bytes(range(256)) * 40))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_that_shells_write(encoding: str) -> None:
    assert parse(reading.read(io.BytesIO(DOUBLE.encode(encoding)))).raised[0].name == "RuntimeError"


class Endless(io.RawIOBase):
    """A log of a given size that exists only while it is read, with a text in its middle."""

    def __init__(self, line: bytes, size: int, text: bytes) -> None:
        self.block, self.left, self.at, self.text = line * (65536 // len(line)), size, size // 2, text

    def read(self, size: int = -1) -> bytes:  # noqa: ARG002
        if self.left <= 0:
            return b""
        self.left -= len(self.block)
        if self.text and self.left < self.at:
            text, self.text = self.text, b""
            return text
        return self.block


@pytest.mark.parametrize("line", [b"INFO step 10 loss 1.0\n", DOUBLE.encode(), b"x" * 100])
def test_a_log_of_any_size_is_kept_in_bounded_memory(line: bytes) -> None:
    import tracemalloc

    tracemalloc.start()
    text = reading.read(Endless(line, 30 << 20, b"\n" + DOUBLE.encode() + b"\n"))  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert len(text) < 2 << 20
    assert any(raised.message.startswith("Trying to backward") for raised in parse(text).raised)


@given(st.integers(0, 300_000), st.integers(0, 300_000), st.sampled_from([b"a", b"\n", b"ab c\n"]))
@settings(max_examples=20, deadline=None)
def test_a_traceback_is_found_wherever_in_a_log_it_lies(before: int, after: int, fill: bytes) -> None:
    padding = b"." * reading.WHOLE + b"\n"
    content = padding + fill * before + b"\n" + DOUBLE.encode() + b"\n" + fill * after + b"\n"
    assert EXPECTED in parse(reading.read(io.BytesIO(content))).raised


EXPECTED = parse(DOUBLE).raised[0]

HOSTILE = [
    "a", "Error: ", 'File "', '"', "<div ", "a.", "\x1b[", "[", "Traceback (most recent call last):\n", "<p>&amp;",
    '  File "a.py", line 3, in f\n', "RuntimeError: x\n", "x        ", "transformers ", "fp16=", "[rank0]: ", "aError ",
    "a | x\n", "<script>", "Error: \\n", "E   \n", '"a.py" x x x x 1\n', "/a in ", "(exitcode: -", "- ", "\\u001b[",
    "Cell In[1", "~/a:1 in ", "| ", "+-", "“", "\n", "transformers==4.", "A.b", "---> 1", "a" * 60 + "|",
]  # fmt: skip


def seconds(text: str) -> float:
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        answer(text)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_grows_no_faster_than_the_text(unit: str) -> None:
    small, large = (unit * (size // len(unit)) for size in (20_000, 160_000))
    assert seconds(large) < 8 * 3 * seconds(small) + 0.05


PIECES = st.sampled_from(
    [*HOSTILE, *DOUBLE.splitlines(keepends=True), *OOM_TEXTS.values(), "\r", "\x00", "\u202e", "[red]"]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=40).map("".join))
@settings(max_examples=80, deadline=None)
def test_any_text_gets_an_answer_that_steers_nothing(text: str) -> None:
    from repro.commands.triage import describe

    told = answer(text)
    shown = "\n".join([*describe(told), json.dumps(told.as_json(), ensure_ascii=False)])
    assert all(character == "\n" or plain.inert(character) == character for character in shown)
    shown.encode("utf-8")
    assert json.loads(json.dumps(told.as_json()))["failure"] in (None, *failures())


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_text_or_a_clear_message(content: bytes) -> None:
    try:
        answer(reading.read(io.BytesIO(content)))
    except reading.UnreadableError as error:
        assert "empty" in str(error) or "binary" in str(error)  # noqa: PT017


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_list_of_packages_is_read_or_refused_clearly(text: str) -> None:
    try:
        found = requirements.parse(text, "list.txt")
    except requirements.RequirementsError as error:
        assert "lists no packages" in str(error)  # noqa: PT017
    else:
        assert set(found.found) <= set(versions.PACKAGES)


# The command.


def run(*options: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "repro", "triage", *options]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_answers_a_known_failure_with_0_and_another_with_1(tmp_path: Path) -> None:
    path = tmp_path / "traceback.txt"
    path.write_text(DOUBLE)
    results = str(observations(tmp_path / "results", SEEN))
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("transformers==4.53.0\n")
    known = run(str(path), "--results", results, "--requirements", str(freeze))
    assert known.returncode == 0, known.stderr
    assert "Do they have it: yes (observed in transformers 4.53.0" in known.stdout
    assert 'gradient_checkpointing_kwargs={"use_reentrant": False}' in known.stdout
    unknown = run("--json", text="ValueError: no\n")
    assert unknown.returncode == 1
    assert json.loads(unknown.stdout)["failure"] is None


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["nowhere.txt"], 2, "cannot read nowhere.txt"),
        (["-"], 2, "empty"),
        (["--requirements", "nowhere.txt"], 2, "nowhere.txt"),
        (["--environment", "nowhere"], 2, "no Python environment"),
    ],
)
def test_wrong_usage_is_told_in_one_message(options: list[str], code: int, message: str) -> None:
    done = run(*options, text="" if options == ["-"] else DOUBLE)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_results_of_a_newer_schema_are_refused_with_a_message(tmp_path: Path) -> None:
    row = {**record("observation", "cell", failure=WHISPER.id), "schema": 99}
    (tmp_path / "new.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ResultsError, match="newer version"):
        answer(DOUBLE, (tmp_path,))
    assert run("--results", str(tmp_path), text=DOUBLE).returncode == 3


def test_the_command_imports_no_torch() -> None:
    program = "import sys, repro.commands.triage, repro.triage.answer, repro; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
