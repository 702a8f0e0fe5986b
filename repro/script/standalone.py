"""The frame of every script: pins that uv reads, what is shown and expected, and the check of it at the end.

What a failure adds (`Failure.script`) is Python source that defines `reproduce()`: it trains through the public API,
lets errors out, and otherwise returns the outcome it sees: `"trains"`, or the name of another outcome. What it had to
work out, as the device that would show it is not at hand, it calls `"would be ..."`. It imports what it needs, and
nothing of this project.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from packaging.version import Version

from repro.script.choose import Chosen

PINNED = ("accelerate", "numpy", "tokenizers", "huggingface-hub", "safetensors")
"""Companions that decide how a release behaves; they are pinned to what the observed cell had."""

OPTIONAL = ("datasets", "jiwer", "peft")
"""Companions that are pinned only where the script imports them."""

HEAD = """
import os
import re
import sys
import traceback

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")  # before a library reads them

import torch
import transformers
"""

TAIL = '''
def name_of(error: BaseException) -> str:
    """Name the outcome that an error is: one of the known symptoms, or another error."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    for outcome, (kind, message) in SYMPTOMS.items():
        if kind in kinds and re.search(message, str(error)):
            return outcome
    return f"another error, {type(error).__name__}: {error}"


def main() -> int:
    print("transformers", transformers.__version__, "torch", torch.__version__)
    try:
        outcome = reproduce()
    except Exception as error:
        traceback.print_exc()
        outcome = name_of(error)
    print("expected:", EXPECTED)
    print("observed:", outcome)
    as_expected = outcome.removeprefix("would be ") == EXPECTED
    print("as expected" if as_expected else "NOT as expected")
    return 0 if as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
'''


def script(chosen: Chosen) -> str:
    """Return the whole file."""
    assert chosen.failure.script is not None
    body = chosen.failure.script(chosen.configuration).strip("\n")
    parts = (_header(chosen, body), _docstring(chosen), HEAD.strip("\n"), body, _expectation(chosen), TAIL.strip("\n"))
    return "\n\n\n".join(part.strip("\n") for part in parts).replace("///\n\n\n", "///\n", 1) + "\n"


def pins(chosen: Chosen, body: str) -> Iterator[str]:
    """Yield the requirements, as resolved in the cell; versions without their local part, which no index offers."""
    yield f"transformers=={chosen.cell.transformers}"
    yield f"torch=={Version(chosen.cell.torch).public}"
    imported = [name for name in OPTIONAL if re.search(rf"^\s*(import|from) {name}\b", body, re.MULTILINE)]
    for name in (*PINNED, *imported):
        if version := chosen.resolved.get(name):
            yield f"{name}=={Version(version).public}"


def _header(chosen: Chosen, body: str) -> str:
    requires = f"=={'.'.join(chosen.python.split('.')[:2])}.*" if chosen.python else ">=3.10"
    lines = ["/// script", f'requires-python = "{requires}"', "dependencies = ["]
    lines += [f'    "{pin}",' for pin in pins(chosen, body)]
    return "\n".join(f"# {line}" for line in [*lines, "]", "///"])


def _docstring(chosen: Chosen) -> str:
    failure = chosen.failure
    settings = ", ".join(f"{name}={level}" for name, level in failure.deviations(chosen.configuration).items())
    paragraphs = [
        failure.title.rstrip(".") + ".",
        failure.summary,
        f"Run here: {settings or 'the plain run'}.",
        f"Expected: {chosen.expected} ({chosen.how}, on {chosen.date}).",
        "    uv run THIS_FILE",
        "It builds a tiny model from a configuration and makes up its data: no more than the packages above is "
        "downloaded. "
        "It ends with 0 when what is expected is what happens, and with 1 when it is not.",
    ]
    if chosen.claim:
        paragraphs.insert(2, f"With this advice followed: {chosen.claim.says} ({chosen.claim.id}).")
    wrapped = [p if p.startswith(" ") else textwrap.fill(p, 100, break_on_hyphens=False) for p in paragraphs]
    text = "\n\n".join(wrapped).replace("\\", r"\\").replace('"""', r"\"\"\"")
    return f'"""{text}\n"""\n'


def _expectation(chosen: Chosen) -> str:
    symptoms = [
        f"    {_quoted(symptom.outcome)}: ({_quoted(symptom.exception)}, {_raw(symptom.message)}),"
        for symptom in chosen.failure.symptoms
        if symptom.exception
    ]
    lines = [
        f"EXPECTED = {_quoted(chosen.expected)}",
        "# How known failures show themselves: exception, message.",
        *(["SYMPTOMS = {", *symptoms, "}"] if symptoms else ["SYMPTOMS = {}  # none of them raises"]),
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _raw(expression: str) -> str:
    """Return a regular expression as a person would write it in Python."""
    raw = f'r"{expression}"'
    return raw if '"' not in expression and not expression.endswith("\\") else repr(expression)
