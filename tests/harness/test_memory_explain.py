"""`repro explain`: a failure's law with the numbers of a configuration put in."""

from __future__ import annotations

import importlib
import json

import pytest
from typer.testing import CliRunner

from repro.catalog import failures
from repro.commands import Stop, build_app
from repro.memory.laws import Law, Term
from repro.vocabulary import Configuration

FAILURE = failures()["whisper-double-backward"]
MODULE = next(
    name
    for name in ("repro.catalog.whisper_double_backward", FAILURE.observe.__module__)
    if getattr(importlib.import_module(name), "FAILURE", None) is FAILURE
)


def law(configuration: Configuration) -> Law:
    count = len(FAILURE.deviations(configuration))
    return Law("in the middle", (Term("deviations", "1000 D", f"1000 {count}", 1000 * count),))


def test_the_law_beside_a_declaration_is_printed_for_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module(MODULE), "law", law, raising=False)
    reported = len(FAILURE.deviations(FAILURE.reported))
    result = CliRunner().invoke(build_app(), ["explain", FAILURE.id])
    assert f"peak {1000 * reported:,} bytes, reached in the middle" in result.output
    name = next(iter(FAILURE.deviations(FAILURE.reported)))
    level = str(next(factor.default for factor in FAILURE.factors if factor.name == name))
    result = CliRunner().invoke(build_app(), ["explain", FAILURE.id, "--set", f"{name}={level}", "--json"])
    assert json.loads(result.output)["bytes"] == 1000 * (reported - 1)


def test_the_reported_peak_is_explained_with_its_numbers() -> None:
    result = CliRunner().invoke(build_app(), ["explain", "callback-eval-oom"])
    for part in ("in joining batch 60", "480 40 1024", "AdamW's state = 8 N", "parameters"):
        assert part in result.output
    result = CliRunner().invoke(build_app(), ["explain", "callback-eval-oom", "--set", "callback=off"])
    assert "(fitted)" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([FAILURE.id], "has no law"),
        (["no-such-failure"], "no failure 'no-such-failure'"),
        ([FAILURE.id, "--set", "colour=red"], "has no factor 'colour'"),
        ([FAILURE.id, "--set", "colour"], "FACTOR=LEVEL"),
        (["callback-eval-oom", "--set", "call_batch=2"], "no law for this configuration"),
    ],
)
def test_what_cannot_be_explained_is_said_and_is_wrong_usage(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(build_app(), ["explain", *arguments])
    assert isinstance(result.exception, Stop)
    assert result.exception.code == 2
    assert says in str(result.exception)
