"""The minimal condition of each outcome: cubes, tables, ranges, evidence, and the command."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import symbols
from sympy.logic import SOPform
from sympy.logic.boolalg import Or
from typer.testing import CliRunner

from repro.catalog import find
from repro.commands import build_app
from repro.store.reader import read
from repro.store.records import record
from repro.store.writer import Writer
from repro.trigger import cubes, wording
from repro.trigger.conditions import conditions
from repro.trigger.declared import compare
from repro.trigger.ranges import ranges
from repro.trigger.report import report
from repro.trigger.table import Observed, tables
from repro.vocabulary import Configuration, Scope

WHISPER = find("whisper-double-backward")
REENTRANT: Mapping[str, Any] = {
    "default_mode": "reentrant",
    "live_keywords": ["encoder_hidden_states"],
    "inputs_with_gradient": {"before": [], "after": ["decoder"]},
}
GOOD = {**REENTRANT, "live_keywords": []}
ENDS: dict[str, dict[str, Any]] = {
    "trains": {"end": "completed", "gradients": {}, "loss_finite": True, "moved": True},
    "double backward": {
        "end": "raised",
        "exception": {
            "type": "RuntimeError",
            "bases": ["Exception"],
            "message": "Trying to backward through the graph a second time",
        },
    },
    "loss has no gradient": {
        "end": "raised",
        "exception": {
            "type": "RuntimeError",
            "bases": [],
            "message": "element 0 of tensors does not require grad and does not have a grad_fn",
        },
    },
    "gradients missing": {"end": "completed", "gradients": {"missing": ["x"]}},
    "timed out": {"end": "timed out"},
}


def stored(
    directory: Path,
    outcomes: Mapping[Configuration, str],
    *,
    transformers: str = "4.53.3",
    scope: Scope = "model",
    mechanism: Mapping[str, Any] | None = REENTRANT,
) -> None:
    """Write observations as a cell would."""
    writer = Writer(directory)
    cell = f"transformers-{transformers}"
    if mechanism is not None:
        writer.append(record("mechanism", cell, failure=WHISPER.id, mechanism=mechanism))
    for configuration, outcome in outcomes.items():
        trial = WHISPER.trial(configuration, scope)
        about = {"failure": WHISPER.id, "trial": trial.id, "scope": scope, "configuration": dict(configuration)}
        versions = {"transformers": transformers, "torch": "2.13.0", "device": "cpu"}
        writer.append(record("observation", cell, **about, **versions, **ENDS[outcome]))
    writer.close()


def observed(directory: Path) -> Observed:
    return tables(WHISPER, read(directory))


def predicted(mechanism: Mapping[str, Any] = REENTRANT, step: int = 1) -> dict[Configuration, str]:
    chosen = itertools.islice(WHISPER.combinations("model"), 0, None, step)
    return {c: str(WHISPER.trigger.predict(c, "model", mechanism)) for c in chosen}


# Cubes

Table = tuple[list[int], set[cubes.Point], set[cubes.Point]]


@st.composite
def truth_tables(draw: st.DrawFn) -> Table:
    sizes = draw(st.lists(st.integers(2, 3), min_size=1, max_size=4))
    points = list(itertools.product(*map(range, sizes)))
    marks = draw(st.lists(st.sampled_from(("on", "off", "open")), min_size=len(points), max_size=len(points)))
    on = {point for point, mark in zip(points, marks, strict=True) if mark == "on"}
    off = {point for point, mark in zip(points, marks, strict=True) if mark == "off"}
    return sizes, on, off


def all_cubes(sizes: Sequence[int]) -> list[cubes.Cube]:
    return list(itertools.product(*(range(1, 1 << size) for size in sizes)))


def covers(chosen: Sequence[cubes.Cube], points: set[cubes.Point]) -> bool:
    return all(any(cubes.holds(cube, point) for cube in chosen) for point in points)


@settings(max_examples=60, deadline=None)
@given(truth_tables())
def test_primes_are_exactly_the_largest_cubes_that_avoid_what_is_off(table: Table) -> None:
    sizes, on, off = table
    legal = [cube for cube in all_cubes(sizes) if not any(cubes.holds(cube, point) for point in off)]
    useful = [cube for cube in legal if any(cubes.holds(cube, point) for point in on)]
    wider = [[o for o in legal if o != cube and cubes.within(cube, o)] for cube in useful]
    largest = {cube for cube, others in zip(useful, wider, strict=True) if not others}
    assert set(cubes.primes(on, off, sizes)) == largest


@settings(max_examples=60, deadline=None)
@given(truth_tables())
def test_a_cover_holds_all_that_is_on_and_nothing_that_is_off_and_no_smaller_one_exists(table: Table) -> None:
    sizes, on, off = table
    candidates = cubes.primes(on, off, sizes)
    cover = cubes.smallest_cover(on, candidates, sizes)
    assert covers(cover, on)
    assert not any(cubes.holds(cube, point) for cube in cover for point in off)
    fewer = itertools.islice(itertools.combinations(candidates, max(len(cover) - 1, 0)), 3000)
    assert not on or not any(covers(other, on) for other in fewer)
    literals = sum(cubes.literals(cube, sizes) for cube in cover)
    for other in itertools.islice(itertools.combinations(candidates, len(cover)), 3000):
        assert not covers(other, on) or sum(cubes.literals(cube, sizes) for cube in other) >= literals


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(("on", "off", "open")), min_size=16, max_size=16))
def test_two_valued_conditions_are_never_longer_than_those_of_sympy(marks: list[str]) -> None:
    points = list(itertools.product((0, 1), repeat=4))
    on, off, either = ([p for p, m in zip(points, marks, strict=True) if m == name] for name in ("on", "off", "open"))
    cover = cubes.smallest_cover(on, cubes.primes(on, off, [2] * 4), [2] * 4)
    theirs = SOPform(symbols("a b c d"), [list(point) for point in on], [list(point) for point in either])
    assert len(cover) <= (len(theirs.args) if isinstance(theirs, Or) else int(bool(on)))


def test_points_that_no_candidate_holds_are_an_error_and_not_a_shorter_condition() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        cubes.smallest_cover([(0,)], [(2,)], [2])


# Conditions


def test_the_condition_of_a_full_table_is_the_minimal_one_with_a_pair_for_every_literal(tmp_path: Path) -> None:
    stored(tmp_path, predicted())
    [span] = ranges(observed(tmp_path).tables)
    first = conditions(WHISPER, span)[0]
    assert wording.formula(first) == (
        "checkpointing = method ∧ use_reentrant ≠ False ∧ decoder_layers ≥ 2 ∧ encoder = trainable ∧ lora = off"
    )
    assert first.complete
    for literal in first.terms[0]:
        assert literal.evidence is not None
        one, other = literal.evidence.one, literal.evidence.other
        changed = {name for name in one.configuration if one.configuration[name] != other.configuration[name]}
        assert changed == {literal.factor}
        assert one.outcome == "double backward" != other.outcome
        assert one.configuration[literal.factor] in literal.levels
        assert other.configuration[literal.factor] not in literal.levels


def test_factors_that_never_matter_are_counted_in_pairs_and_refute_the_advice_about_them(tmp_path: Path) -> None:
    stored(tmp_path, predicted())
    [span] = report(WHISPER, observed(tmp_path))["ranges"]
    never = {item["factor"]: item for item in span["conditions"][0]["never_matters"]}
    assert set(never) == {"use_cache", "precision", "attention"}
    assert never["use_cache"] == {"factor": "use_cache", "pairs": 48, "alone": True, "claims": ["W2"]}


def test_a_factor_that_a_constraint_ties_to_another_is_tested_beside_it(tmp_path: Path) -> None:
    failing = WHISPER.reported
    outcomes = {
        WHISPER.configuration(): "trains",
        failing: "double backward",
        failing.but(best_model="no"): "double backward",
        failing.but(best_model="no", evaluation="no"): "double backward",
    }
    stored(tmp_path, outcomes, scope="trainer")
    [span] = ranges(observed(tmp_path).tables)
    first = conditions(WHISPER, span)[0]
    assert first.never_matters == {"evaluation": 1, "best_model": 1}
    # Without the trial in the middle no pair differs in evaluation alone, and none shows that the best model is free.
    del outcomes[failing.but(best_model="no")]
    other = tmp_path / "other"
    stored(other, outcomes, scope="trainer")
    [span] = ranges(observed(other).tables)
    assert "evaluation" in conditions(WHISPER, span)[0].untested
    # Beside a factor that is known to be free, it is tested.
    stored(other, {failing.but(predict_with_generate="no"): "double backward"}, scope="trainer")
    stored(other, {failing.but(best_model="no", predict_with_generate="no"): "double backward"}, scope="trainer")
    spans = ranges(observed(other).tables)
    found = conditions(WHISPER, next(span for span in spans if span.scope == "trainer"))[0]
    assert "best_model" in found.never_matters
    assert found.nor_these == {"evaluation": 3}


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_conditions_agree_with_every_row_whatever_was_observed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    everything = list(WHISPER.combinations("model"))
    rows = data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=25, unique=True))
    names = ("trains", "double backward", "gradients missing")
    outcomes = {row: data.draw(st.sampled_from(names)) for row in rows}
    directory = tmp_path_factory.mktemp("rows")
    stored(directory, outcomes)
    [span] = ranges(observed(directory).tables)
    found = conditions(WHISPER, span)
    assert {condition.outcome for condition in found} == set(outcomes.values())
    for condition in found:
        for row, outcome in outcomes.items():
            met = any(all(row[literal.factor] in literal.levels for literal in term) for term in condition.terms)
            assert met == (outcome == condition.outcome)


def test_neighbouring_releases_join_until_one_configuration_tells_them_apart(tmp_path: Path) -> None:
    for version in ("4.53.0", "4.57.6", "4.9.0"):
        stored(tmp_path, predicted(step=5), transformers=version)
    stored(tmp_path, predicted(GOOD, step=5), transformers="5.0.0", mechanism=GOOD)
    spans = ranges(observed(tmp_path).tables)
    assert [span.releases for span in spans] == [("4.9.0", "4.53.0", "4.57.6"), ("5.0.0",)]


def test_releases_that_saw_nothing_in_common_do_not_join(tmp_path: Path) -> None:
    stored(tmp_path, {WHISPER.configuration(): "trains"}, transformers="4.53.0")
    stored(tmp_path, {WHISPER.configuration(checkpointing="method"): "double backward"}, transformers="4.53.1")
    assert len(ranges(observed(tmp_path).tables)) == 2


# Declared, contradictory, unfinished


def test_an_observation_unlike_the_declared_trigger_is_a_difference(tmp_path: Path) -> None:
    outcomes = predicted(step=7)
    wrong = next(c for c, outcome in outcomes.items() if outcome == "double backward")
    stored(tmp_path, {**outcomes, wrong: "gradients missing"})
    [difference] = compare(WHISPER, observed(tmp_path).tables).differences
    assert difference.row.configuration == wrong
    assert (difference.expected, difference.row.outcome) == ("double backward", "gradients missing")


def test_contradictory_observations_are_all_shown_and_decide_nothing(tmp_path: Path) -> None:
    configuration = WHISPER.configuration(checkpointing="method")
    for outcome in ("double backward", "trains", "double backward"):
        stored(tmp_path, {configuration: outcome})
    found = observed(tmp_path)
    [item] = found.contradictions
    assert {outcome: len(ids) for outcome, ids in item.outcomes.items()} == {"double backward": 2, "trains": 1}
    assert all(configuration not in table.rows for table in found.tables)


def test_unfinished_trials_have_no_row(tmp_path: Path) -> None:
    stored(tmp_path, {WHISPER.configuration(): "timed out"})
    found = observed(tmp_path)
    assert found.unfinished == 1
    assert not any(table.rows for table in found.tables)


# The command


def call(*words: str) -> Any:
    return CliRunner().invoke(build_app(), ["trigger", WHISPER.id, *words])


def test_the_command_ends_with_0_when_the_trigger_agrees_and_with_1_when_it_does_not(tmp_path: Path) -> None:
    outcomes = predicted(step=5)
    stored(tmp_path, outcomes)
    done = call("--results", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["comparison"]["differences"] == []
    stored(tmp_path, dict.fromkeys(outcomes, "trains"), transformers="4.54.0")
    done = call("--results", str(tmp_path))
    assert done.exit_code == 1
    assert "declared double backward, observed trains" in done.stdout


def test_the_command_ends_with_1_and_all_evidence_on_a_contradiction(tmp_path: Path) -> None:
    configuration = WHISPER.configuration(checkpointing="method")
    stored(tmp_path, {configuration: "double backward"})
    stored(tmp_path, {configuration: "trains"})
    done = call("--results", str(tmp_path))
    assert done.exit_code == 1
    ids = [row["id"] for row in read(tmp_path).of_kind("observation")]
    assert all(name in done.stdout for name in ids)


def test_without_the_mechanism_nothing_was_compared_and_that_is_not_success(tmp_path: Path) -> None:
    stored(tmp_path, predicted(step=9), mechanism=None)
    done = call("--results", str(tmp_path))
    assert done.exit_code == 3
    assert "not compared" in done.stdout


def test_without_observations_the_command_says_how_to_get_some(tmp_path: Path) -> None:
    done = call("--results", str(tmp_path))
    assert "repro run" in str(done.exception)
