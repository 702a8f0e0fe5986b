"""Tracebacks as they arrive: every format yields the same exception, frames and message."""

# ruff: noqa: RUF001 - translated tracebacks have characters of full width

from __future__ import annotations

import asyncio
import html
import json
import re
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from repro.triage.tracebacks import Raised, parse

RECORDED = Path(__file__).parent / "tracebacks"
STANDARD = (RECORDED / "whisper-double-backward-4.53.3.txt").read_text()
EXPECTED = parse(STANDARD).raised[0]


def as_html(text: str) -> str:
    body = html.escape(text).replace("RuntimeError", '<span class="ansi-red-fg">RuntimeError</span>')
    return f"<html><script>RuntimeError: from a script</script><body><pre>{body}</pre></body></html>"


def as_ansi(text: str) -> str:
    return re.sub(r'"([^"]+)"', '\x1b[0;32m"\\1"\x1b[0m', text).replace("RuntimeError", "\x1b[0;31mRuntimeError\x1b[0m")


def as_colour_without_escape(text: str) -> str:
    return as_ansi(text).replace("\x1b", "")


def with_prefix(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}" for line in text.splitlines(keepends=True))


def as_json_line(text: str) -> str:
    return json.dumps({"level": "error", "message": text})


def as_notebook(text: str) -> str:
    output = {"output_type": "error", "traceback": as_ansi(text).split("\n")}
    return json.dumps(
        {"cells": [{"cell_type": "code", "source": ["trainer.train()"], "outputs": [output]}], "nbformat": 4}
    )


def as_windows(text: str) -> str:
    return re.sub(r'"(/[^"]+)"', lambda m: '"C:' + m[1].replace("/", "\\") + '"', text).replace("\n", "\r\n")


FORMATS: dict[str, Callable[[str], str]] = {
    "as printed": lambda text: text,
    "HTML with a script": as_html,
    "colours": as_ansi,
    "colours whose escape was lost": as_colour_without_escape,
    "a notebook file": as_notebook,
    "a log in JSON": as_json_line,
    "Windows": as_windows,
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "after a progress bar": lambda text: "  0%|          | 0/5000 [00:00<?, ?it/s]\r" + text,
    "ExceptionGroup's rail": partial(with_prefix, "  | "),
    **{
        prefix.strip(): partial(with_prefix, prefix)
        for prefix in (
            "[rank0]: ",
            "[default3]:",
            "[1,0]<stderr>:",
            "(RayTrainWorker pid=812, ip=10.0.0.3) ",
            "trainer-1  | ",
            "2024-05-01 12:00:00,123 - ERROR - ",
            "2024-05-01T12:00:00.123456Z ",
            "[2024-05-01 12:00:00] [rank2]: ",
            "> > ",
            "E0501 12:00:00.123456 140 torch/x.py:12] [0/0] ",
        )
    },
}


def places(raised: Raised) -> list[tuple[str, int, str]]:
    return [(re.sub(r"^C:", "", frame.path), frame.line, frame.function) for frame in raised.frames]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_the_same(name: str) -> None:
    (raised,) = parse(FORMATS[name](STANDARD)).raised
    assert (raised.type, raised.message) == (EXPECTED.type, EXPECTED.message)
    assert places(raised) == places(EXPECTED)


def test_the_recorded_traceback_is_read_in_full() -> None:
    assert EXPECTED.type == "RuntimeError"
    assert EXPECTED.message.startswith("Trying to backward through the graph a second time")
    assert len(EXPECTED.frames) == STANDARD.count("  File ")
    assert EXPECTED.frames[0].code == "trainer.train()"
    assert EXPECTED.frames[-1].function == "_engine_run_backward"


def test_interleaved_ranks_are_told_apart() -> None:
    other = STANDARD.replace("RuntimeError: Trying", "ValueError: Not")
    ranks = [[f"[rank{rank}]: {line}" for line in text.splitlines()] for rank, text in enumerate((STANDARD, other))]
    mixed = "\n".join(line for pair in zip(*ranks, strict=True) for line in pair)
    first, second = parse(mixed).raised
    assert (first.type, second.type) == ("RuntimeError", "ValueError")
    assert first.frames == second.frames == EXPECTED.frames
    assert (first.streams, second.streams) == (("rank 0",), ("rank 1",))


def test_the_same_from_every_rank_is_one_exception() -> None:
    text = "\n".join(with_prefix(f"[rank{rank}]: ", STANDARD) for rank in range(8))
    (raised,) = parse(text).raised
    assert raised.times == len(raised.streams) == 8


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.8])
def test_cut_off_at_the_top_or_at_the_bottom(kept: float) -> None:
    lines = STANDARD.splitlines()
    at = int(len(lines) * kept)
    (top,) = parse("\n".join(lines[:at])).raised
    (bottom,) = parse("\n".join(lines[at:])).raised
    assert top.type == ""
    assert top.frames
    assert places(top)[-1] in places(EXPECTED)
    assert (bottom.type, bottom.message) == (EXPECTED.type, EXPECTED.message)
    assert places(bottom) == places(EXPECTED)[len(EXPECTED.frames) - len(bottom.frames) :]


IPYTHON_7 = """\
---------------------------------------------------------------------------
RuntimeError                              Traceback (most recent call last)
<ipython-input-21-3435b262f1ae> in <cell line: 1>()
----> 1 trainer.train()

/usr/local/lib/python3.10/dist-packages/transformers/trainer.py in train(self, resume_from_checkpoint, **kwargs)
   1643             self._inner_training_loop, self._train_batch_size, args.auto_find_batch_size
   1644         )
-> 1645         return inner_training_loop(
   1646             args=args,

RuntimeError: Trying to backward
"""
IPYTHON_8 = """\
RuntimeError                              Traceback (most recent call last)
Cell In[21], line 1
----> 1 trainer.train()

File ~/venv/lib/python3.11/site-packages/transformers/trainer.py:1645, in Trainer.train(self, resume, **kwargs)
   1643     hf_hub_utils.enable_progress_bars()
-> 1645     return inner_training_loop(

RuntimeError: Trying to backward
"""
RICH = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /home/me/train.py:1 in <module>                                              │
│                                                                              │
│ ❱ 1 trainer.train()                                                          │
│ /home/me/venv/lib/transformers/trainer.py:1645 in train                      │
│                                                                              │
│ ❱ 1645         return inner_training_loop(                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
RuntimeError: Trying to backward
"""
CHINESE = """\
回溯（最近的调用最后）：
  文件 "/home/me/train.py"，第 1 行，在 <module>
    trainer.train()
  文件 "/home/me/transformers/trainer.py"，第 1645 行，在 train
    return inner_training_loop(
RuntimeError：Trying to backward
"""
FRENCH = """\
Trace d'appels (appel le plus récent en dernier) :
  Fichier "/home/me/train.py", ligne 1, dans <module>
    trainer.train()
  Fichier "/home/me/transformers/trainer.py", ligne 1645, dans train
    return inner_training_loop(
RuntimeError : Trying to backward
"""


@pytest.mark.parametrize("text", [IPYTHON_7, IPYTHON_8, RICH, CHINESE, FRENCH])
def test_notebooks_boxes_and_translations(text: str) -> None:
    (raised,) = parse(text).raised
    assert (raised.type, raised.message) == ("RuntimeError", "Trying to backward")
    assert [(frame.line, frame.code) for frame in raised.frames] == [
        (1, "trainer.train()"),
        (1645, "return inner_training_loop("),
    ]
    assert raised.frames[-1].function == "train"
    assert raised.frames[-1].path.endswith("transformers/trainer.py")


def test_a_real_context_and_a_real_cause_are_told_apart() -> None:
    def fail() -> None:
        try:
            int("x")
        except ValueError:
            try:
                open("/nowhere/at/all")  # noqa: SIM115
            except OSError as error:
                raise RuntimeError("both") from error

    try:
        fail()
    except RuntimeError:
        text = traceback.format_exc()
    assert [(r.name, r.follows) for r in parse(text).raised] == [
        ("ValueError", ""),
        ("FileNotFoundError", "context"),
        ("RuntimeError", "cause"),
    ]


def test_an_exception_group_yields_its_members() -> None:
    group = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 3, in <module>
  |     run()
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "b.py", line 7, in one
    |     f()
    | ValueError: a
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "b.py", line 9, in two
    |     g()
    | TypeError: b
    +------------------------------------
"""
    raised = parse(group).raised
    assert [(r.name, [f.line for f in r.frames]) for r in raised] == [
        ("ExceptionGroup", [3]),
        ("ValueError", [7]),
        ("TypeError", [9]),
    ]


def test_a_runaway_recursion_keeps_both_ends() -> None:
    frames = "".join(f'  File "a.py", line {n}, in f\n    f()\n' for n in range(1, 3000))
    (raised,) = parse(f"Traceback (most recent call last):\n{frames}RecursionError: too deep\n").raised
    assert (raised.frames[0].line, raised.frames[-1].line) == (1, 2999)
    assert len(raised.frames) == 400


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("I get RuntimeError: CUDA out of memory. Why?", "RuntimeError"),
        ("ERROR:root:torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError"),
        ("    except ValueError: # this is source", None),
        ("Epoch: 3", None),
        ("Loading: done", None),
    ],
)
def test_a_message_in_a_sentence_is_found_and_a_sentence_is_no_exception(line: str, kind: str | None) -> None:
    assert [r.type for r in parse(line).raised] == ([kind] if kind else [])


def test_tasks_of_asyncio_are_read() -> None:
    async def fail() -> None:
        raise ConnectionError("gone")

    try:
        asyncio.run(fail())
    except ConnectionError:
        text = traceback.format_exc()
    assert parse(text).raised[-1].name == "ConnectionError"
