"""Minimizing: delta debugging as such, on a real failure in pytest, and the reading of training arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from repro.catalog import find
from repro.commands import Stop, build_app
from repro.minimize.arguments import read
from repro.minimize.ddmin import ddmin
from repro.minimize.reduce import reduce
from repro.store.reader import read as read_results
from repro.store.writer import ResultsError
from repro.vocabulary import Configuration, Facts, Trial

WHISPER = find("whisper-double-backward")
RAISES: dict[str, Any] = {
    "end": "raised",
    "exception": {"type": "RuntimeError", "bases": [], "message": "Trying to backward through the graph a second time"},
}
TRAINS: dict[str, Any] = {"end": "completed", "gradients": {}, "loss_finite": True, "moved": True}


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.data())
def test_the_result_fails_and_nothing_can_be_left_out_of_it(count: int, data: st.DataObject) -> None:
    causes = data.draw(st.lists(st.sets(st.integers(0, count - 1), max_size=3), min_size=1, max_size=3))

    def fails(subset: tuple[int, ...]) -> bool:
        return any(cause <= set(subset) for cause in causes)

    found = ddmin(range(count), fails)
    assert fails(found)
    assert not any(fails(tuple(other for other in found if other != left)) for left in found)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 64), st.data())
def test_a_single_cause_is_found_in_a_logarithmic_number_of_tests_and_none_is_made_twice(
    count: int, data: st.DataObject
) -> None:
    cause = data.draw(st.integers(0, count - 1))
    made: list[tuple[int, ...]] = []

    def fails(subset: tuple[int, ...]) -> bool:
        made.append(subset)
        return cause in subset

    assert ddmin(range(count), fails) == (cause,)
    assert len(made) == len(set(made)) <= 2 * count.bit_length() + 2


class Rule:
    """Stands in for a release: fails where a rule says so, and keeps the configurations that were run."""

    def __init__(self, *fails: dict[str, Any]) -> None:
        self.fails = fails
        self.run: list[Configuration] = []

    def __call__(self, trial: Trial) -> Facts:
        assert WHISPER.allows(trial.configuration)
        self.run.append(trial.configuration)
        hit = any(all(trial.configuration[n] == level for n, level in rule.items()) for rule in self.fails)
        return RAISES if hit else TRAINS


def test_settings_without_a_part_are_left_out_and_simpler_levels_are_told() -> None:
    rule = Rule({"checkpointing": "both"}, {"checkpointing": "method"})
    found = reduce(WHISPER, WHISPER.reported, "trainer", rule)
    assert found.minimal == {"checkpointing": "both"}
    assert found.weaker == [{"checkpointing": "method"}]
    assert found.again == found.outcome == "double backward"


def test_combinations_that_a_constraint_excludes_are_never_run() -> None:
    rule = Rule({"best_model": "yes"})
    found = reduce(WHISPER, WHISPER.reported, "trainer", rule)
    # Without evaluation there is no best model to choose, so that setting cannot be left out alone.
    assert found.minimal == {"evaluation": "steps", "best_model": "yes"}


def test_a_start_that_trains_is_told_and_not_minimized() -> None:
    found = reduce(WHISPER, WHISPER.reported, "trainer", Rule())
    assert found.minimal is None
    assert len(found.tests) == 1


def test_a_minimal_set_that_does_not_fail_again_is_seen() -> None:
    rule = Rule({"checkpointing": "both"})

    def flaky(trial: Trial) -> Facts:
        known = trial.configuration in rule.run
        facts = rule(trial)
        return TRAINS if known else facts

    found = reduce(WHISPER, WHISPER.reported, "trainer", flaky)
    assert found.minimal == {"checkpointing": "both"}
    assert found.again == "trains"


# Training arguments


def test_arguments_become_levels_in_old_and_new_spelling_and_the_rest_is_named() -> None:
    reading = read(
        WHISPER,
        {
            "activation_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": True},
            "evaluation_strategy": "IntervalStrategy.STEPS",
            "predict_with_generate": True,
            "gradient_accumulation_steps": 8,
            "fp16": True,
            "learning_rate": 1e-5,
        },
    )
    assert WHISPER.deviations(reading.configuration) == {
        "checkpointing": "arguments",
        "use_reentrant": "True",
        "evaluation": "steps",
        "predict_with_generate": "yes",
        "accumulation": 4,
    }
    assert reading.rounded == {"gradient_accumulation_steps": "taken as 4"}
    assert set(reading.ignored) == {"fp16", "learning_rate"}
    assert "CUDA" in reading.ignored["fp16"]


@pytest.mark.parametrize("name", ["gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"])
def test_a_mode_without_checkpointing_is_ignored_by_the_name_it_was_given(name: str) -> None:
    reading = read(WHISPER, {name: {"use_reentrant": True}, "gradient_checkpointing": False})
    assert reading.configuration == WHISPER.configuration()
    assert set(reading.ignored) == {name}
    assert set(reading.taken) == {"gradient_checkpointing"}


NAMES = st.sampled_from(
    ("gradient_checkpointing", "gradient_checkpointing_kwargs", "eval_strategy", "fp16", "bf16", "anything")
)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.text(max_size=4), st.just({"use_reentrant": 1}))


@settings(deadline=None)
@given(st.dictionaries(NAMES, VALUES))
def test_every_argument_is_either_taken_or_ignored_and_the_result_is_a_configuration(given: dict[str, Any]) -> None:
    reading = read(WHISPER, given)
    assert set(given) == set(reading.taken) | set(reading.ignored)
    assert set(reading.configuration) == {factor.name for factor in WHISPER.factors}
    assert WHISPER.configuration(**dict(reading.configuration)) == reading.configuration


# The command


def call(*words: str) -> Any:
    return CliRunner().invoke(build_app(), ["minimize", WHISPER.id, *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--configuration", "{"], "not JSON"),
        (["--configuration", "[]"], "JSON object"),
        (["--configuration", '{"speed": 1}'], "no factor 'speed'"),
        (["--configuration", '{"use_reentrant": "True"}'], "no mode to choose"),
        (["--arguments", "nowhere.json"], "cannot read"),
    ],
)
def test_what_cannot_be_started_from_is_refused_before_anything_runs(words: list[str], message: str) -> None:
    done = call(*words)
    assert isinstance(done.exception, Stop)
    assert done.exception.code == 2
    assert message in str(done.exception)


def test_results_that_cannot_be_written_are_refused_before_anything_runs(tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    done = call("--results", str(tmp_path / "file"))
    assert isinstance(done.exception, ResultsError)
    assert "Choose another directory with --results" in str(done.exception)


@pytest.mark.slow
def test_a_minimization_runs_as_one_pytest_item_and_stores_every_trial(tmp_path: Path) -> None:
    # LoRA before reentrant checkpointing loses its gradient in every release known.
    start = {"checkpointing": "method", "use_reentrant": "True", "lora": "before", "use_cache": "False"}
    done = call("--results", str(tmp_path), "--scope", "model", "--configuration", json.dumps(start), "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert found["minimal"] == {"checkpointing": "method", "use_reentrant": "True", "lora": "before"}
    assert found["outcome"] == "loss has no gradient"
    stored = [row["trial"] for row in read_results(tmp_path).of_kind("observation")]
    assert stored == [test["trial"] for test in found["tests"]]
