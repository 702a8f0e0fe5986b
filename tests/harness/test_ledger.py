"""The ledger: every planned trial is accounted for, and only what ran is green."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from repro.catalog import find
from repro.cells.releases import table
from repro.commands import Stop, build_app
from repro.matrix.plan import Chosen
from repro.nightly import plan as planning
from repro.nightly.ledger import GREEN, MISSING, STATES, Fate, Ledger, ledger, listing
from repro.store.records import record
from repro.store.writer import Writer
from repro.vocabulary import UNFINISHED

from .records import FINE, WHISPER, cell, cell_of, where

CHOSEN = Chosen((find("whisper-double-backward"),), "reference")
TRIALS = CHOSEN.on("cpu")
RELEASES = ("4.52.4", "4.53.3")
PLAN = planning.plan([",".join(RELEASES)], CHOSEN, table(), torch=["2.13.0"], python="3.11")


def observed(release: str, end: str = "completed", trials: Iterable[Any] = TRIALS, **more: Any) -> list[dict[str, Any]]:
    facts = {**FINE, "end": end, **more}
    return [
        cell(release),
        *(
            record("observation", cell_of(release), failure=t.failure, trial=t.id, **where(release), **facts)
            for t in trials
        ),
    ]


def opened(*parts: list[dict[str, Any]], entries: Any = PLAN) -> Ledger:
    listings = {listing(entry): planning.trials_of(CHOSEN, entry.device) for entry in entries}
    return ledger(entries, listings, [row for part in parts for row in part])


def test_what_ran_in_full_is_green() -> None:
    found = opened(*(observed(release) for release in RELEASES))
    assert found.green
    assert found.counts == {"observed": 2 * len(TRIALS)}


def test_a_trial_that_is_not_in_the_results_is_missing_and_red() -> None:
    found = opened(observed(RELEASES[0]), observed(RELEASES[1], trials=TRIALS[1:]))
    assert not found.green
    assert found.counts == {"observed": 2 * len(TRIALS) - 1, "missing": 1}
    [fate] = found.lines[1].fates
    assert (fate.trial, fate.state) == (TRIALS[0].id, MISSING)


def test_a_cell_in_which_nothing_was_collected_is_red() -> None:
    found = opened(observed(RELEASES[0]), [cell(RELEASES[1])])
    assert [line.green for line in found.lines] == [True, False]
    assert found.lines[1].trouble[0] == "nothing was collected"


@pytest.mark.parametrize("end", UNFINISHED)
def test_every_end_but_a_declared_skip_is_told_apart_and_red(end: str) -> None:
    rest = observed(RELEASES[1], trials=TRIALS[1:])
    found = opened(observed(RELEASES[0]), rest, observed(RELEASES[1], end, TRIALS[:1], detail="because"))
    state = "skipped with a declared reason" if end == "skipped" else end
    assert found.counts == {"observed": 2 * len(TRIALS) - 1, state: 1}
    assert found.lines[1].fates[0].detail == "because"
    assert found.green is (end == "skipped")


def test_a_skip_without_a_reason_is_red_and_so_is_a_cell_that_only_skipped() -> None:
    silent = opened(
        observed(RELEASES[0]), observed(RELEASES[1], "skipped", TRIALS[:1]), observed(RELEASES[1], trials=TRIALS[1:])
    )
    assert not silent.green
    assert silent.counts["skipped without a reason"] == 1
    assert not opened(observed(RELEASES[0]), observed(RELEASES[1], "skipped", detail="no peft")).green


@pytest.mark.parametrize(
    ("stage", "state"), [("build", "could not build"), ("resolve", "could not build"), ("pytest", "missing")]
)
def test_a_cell_that_failed_says_how_far_it_came_and_why(stage: str, state: str) -> None:
    failed = record("cell failed", "x", requested=PLAN[1].name, stage=stage, reason="no such wheel")
    found = opened(observed(RELEASES[0]), [failed])
    assert found.counts == {"observed": len(TRIALS), state: len(TRIALS)}
    assert found.lines[1].trouble[0] == "nothing was observed: no such wheel"
    assert set(found.lines[1].fates) == {Fate(trial.id, state, "no such wheel") for trial in TRIALS}
    assert found.only_unable is (state == "could not build")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (PLAN[1].name, True),
        (PLAN[1].cell, True),
        (f"transformers {RELEASES[1]} with torch 2.13.0", True),
        (f"transformers {RELEASES[1]}", True),
        (f"transformers {RELEASES[0]}", False),
        ("", False),
    ],
)
def test_a_cell_that_failed_is_known_by_each_of_its_names(name: str, found: bool) -> None:
    failed = record("cell failed", "x", requested=name, stage="build", reason="no such wheel")
    assert ("no such wheel" in opened([failed]).lines[1].trouble[0]) is found
    assert ("no such wheel" in opened([failed], entries=PLAN[1:]).lines[0].trouble[0]) is found


def test_a_release_is_no_name_of_one_of_two_cells_that_have_it() -> None:
    both = planning.plan([RELEASES[0]], CHOSEN, table(), torch=["2.11.0", "2.12.0"], python="3.11")
    failed = record("cell failed", "x", requested=f"transformers {RELEASES[0]}", stage="build", reason="no such wheel")
    assert [line.trouble[0] for line in opened([failed], entries=both).lines] == ["nothing was collected"] * 2
    [alone] = opened([failed], entries=both[:1]).lines
    assert alone.trouble[0] == "nothing was observed: no such wheel"


def test_of_several_failures_of_a_cell_the_last_is_told() -> None:
    failed = [
        record("cell failed", "x", requested=PLAN[1].name, stage=stage, reason=stage) for stage in ("pytest", "build")
    ]
    [_, line] = opened(observed(RELEASES[0]), failed).lines
    assert line.trouble == ("nothing was observed: build", f"{len(TRIALS)} could not build")
    assert {fate.detail for fate in line.fates} == {"build"}


def test_a_second_try_that_succeeds_counts_in_any_order() -> None:
    failed = record("cell failed", cell_of(RELEASES[1]), requested="x", stage="pytest", reason="lost")
    crash = observed(RELEASES[1], "crashed", TRIALS[:1])
    for parts in ([crash, observed(RELEASES[1])], [observed(RELEASES[1]), crash]):
        assert opened(observed(RELEASES[0]), [failed], *parts).green


def test_a_trial_that_was_started_and_says_nothing_more_is_missing_and_told_so() -> None:
    begun = record("started", cell_of(RELEASES[1]), failure=WHISPER.id, trial=TRIALS[0].id, **where(RELEASES[1]))
    found = opened(observed(RELEASES[0]), observed(RELEASES[1], trials=TRIALS[1:]), [begun])
    assert found.lines[1].fates == (Fate(TRIALS[0].id, MISSING, "started, and left no observation"),)
    assert found.lines[1].trouble == ("1 missing",)
    never = opened(observed(RELEASES[0]), observed(RELEASES[1], trials=TRIALS[1:]))
    assert never.lines[1].fates == (Fate(TRIALS[0].id, MISSING, "not in the results"),)
    assert never.lines[1].cells == (cell_of(RELEASES[1]),)


def test_an_end_without_a_reason_is_told_without_one_and_the_last_of_two_bad_ends_counts() -> None:
    rest = observed(RELEASES[1], trials=TRIALS[1:])
    crashed, late = (observed(RELEASES[1], end, TRIALS[:1])[1:] for end in ("crashed", "timed out"))
    found = opened(observed(RELEASES[0]), rest, crashed, late)
    assert found.lines[1].fates == (Fate(TRIALS[0].id, "timed out", ""),)


def test_of_two_cells_that_are_the_planned_one_the_better_end_of_a_trial_counts() -> None:
    crashed = observed(RELEASES[1], "crashed")
    again = [{**row, "cell": "again"} for row in observed(RELEASES[1])]
    found = opened(observed(RELEASES[0]), crashed, again)
    assert (found.green, found.lines[1].cells, found.unplanned) == (True, (cell_of(RELEASES[1]), "again"), ())


def test_a_plan_without_cells_and_one_of_another_catalogue_are_red() -> None:
    assert not opened(entries=()).green
    other = planning.Entry(**{**PLAN[0].__dict__, "digest": "0" * 12})
    found = opened(observed(RELEASES[0]), entries=(other,))
    assert found.lines[0].trouble[0].endswith(" or others: make the plan and the ledger with one version")


@pytest.mark.parametrize(
    "wrong",
    [
        {"transformers": "4.51.3"},
        {"torch": "2.7.0"},
        {"python": "3.12.1"},
        {"device": "cuda"},
        {"requested": "environment x"},
    ],
)
def test_another_cell_than_the_planned_one_does_not_count_and_is_named(wrong: dict[str, str]) -> None:
    records = [(row | wrong if row["kind"] == "cell" else row) for row in observed(RELEASES[1])]
    found = opened(observed(RELEASES[0]), records)
    assert not found.green
    assert found.unplanned == (cell_of(RELEASES[1]),)


def test_a_build_of_the_planned_torch_for_a_device_is_that_torch() -> None:
    rows = [row | {"torch": "2.13.0+cpu"} for row in observed(RELEASES[1])]
    assert opened(observed(RELEASES[0]), rows).green


def test_a_plan_that_leaves_torch_and_python_open_takes_any() -> None:
    left = planning.Entry(**{**PLAN[1].__dict__, "torch": "", "python": ""})
    rows = [row | {"torch": "2.7.0", "python": "3.12.1"} for row in observed(RELEASES[1])]
    assert opened(rows, entries=(left,)).green


def test_records_of_a_cell_that_nothing_says_more_of_are_passed_over() -> None:
    begun = record("started", "nowhere", failure=WHISPER.id, trial=TRIALS[0].id)
    found = opened([begun], *(observed(release) for release in RELEASES))
    assert (found.green, found.unplanned) == (True, ())


def test_a_cell_is_found_whether_it_was_described_before_its_trials_or_after() -> None:
    after = [row for release in RELEASES for row in reversed(observed(release))]
    assert opened(after).green


def test_main_is_the_environment_of_that_name() -> None:
    main = planning.plan(["4.52.4"], CHOSEN, table(), main=True)[1:]
    rows = observed("5.99.0.dev0")
    rows[0] |= {"requested": "environment main"}
    assert opened(rows, entries=main).green
    assert not opened(observed("5.99.0.dev0"), entries=main).green


ends = st.sampled_from(["completed", "raised", "refused", *UNFINISHED])


@given(st.lists(st.tuples(st.sampled_from(RELEASES), st.integers(0, len(TRIALS) - 1), ends), max_size=30), st.randoms())
def test_every_planned_trial_has_exactly_one_fate_whatever_the_order_of_shards(rows: list[Any], random: Any) -> None:
    records = [row for release, index, end in rows for row in observed(release, end, [TRIALS[index]], detail="x")[1:]]
    found = opened(records)
    assert sum(found.counts.values()) == 2 * len(TRIALS)
    assert set(found.counts) <= set(STATES)
    assert found.green is (set(found.counts) <= set(GREEN) and all("observed" in line.counts for line in found.lines))
    random.shuffle(records)
    assert opened(records).counts == found.counts


def run(
    tmp_path: Path, *parts: list[dict[str, Any]], plan: Any = PLAN, more: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    writer = Writer(tmp_path / "results")
    for row in (row for part in parts for row in part):
        writer.append(row)
    (tmp_path / "plan.json").write_text(json.dumps(planning.as_matrix(plan)))
    words = ["ledger", "--plan", str(tmp_path / "plan.json"), "--results", str(tmp_path / "results"), *more]
    result = CliRunner().invoke(build_app(), words)
    stop = result.exception if isinstance(result.exception, Stop) else None
    return stop.code if stop else result.exit_code, result.stdout, str(stop or "")


def test_the_command_is_green_only_when_all_ran(tmp_path: Path) -> None:
    assert run(tmp_path, observed(RELEASES[0]))[0] == 1
    code, out, _ = run(tmp_path, observed(RELEASES[1]), more=("--json",))
    assert code == 0
    assert json.loads(out)["green"] is True


def test_each_cell_is_held_to_the_failures_and_the_set_of_trials_that_it_was_planned_with(tmp_path: Path) -> None:
    budgeted = Chosen((find("callback-eval-oom"),), "budgeted")
    entries = (PLAN[0], *planning.plan([RELEASES[0]], budgeted, table(), torch=["2.13.0"], python="3.11"))
    code, out, _ = run(tmp_path, observed(RELEASES[0]), plan=entries, more=("--json",))
    assert code == 1
    [whole, missing] = [cell["trouble"] for cell in json.loads(out)["cells"]]
    assert (whole, missing) == ([], ["nothing was collected", f"{len(budgeted.on('cpu'))} missing"])


def test_the_command_refuses_a_plan_of_another_catalogue_and_names_lines_that_are_no_records(tmp_path: Path) -> None:
    foreign = planning.Entry(**{**PLAN[0].__dict__, "failures": "no-such-failure"})
    code, _, said = run(tmp_path, plan=(foreign,))
    assert code == 2
    assert re.fullmatch(r".*plan\.json: .*no-such-failure.* The plan was made with another catalogue\.", said)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.jsonl").write_text("what?\n")
    (tmp_path / "plan.json").write_text(json.dumps(planning.as_matrix(PLAN)))
    words = ["ledger", "--plan", str(tmp_path / "plan.json"), "--results", str(tmp_path / "results")]
    said = CliRunner().invoke(build_app(), words).stderr
    assert f"skipped a line that is no record: {tmp_path / 'results' / 'x.jsonl'}:1: not JSON" in said


def test_the_command_tells_what_the_environment_is_to_blame_for(tmp_path: Path) -> None:
    failed = record("cell failed", "x", requested=PLAN[1].name, stage="build", reason="no such wheel")
    code, out, said = run(tmp_path, observed(RELEASES[0]), [failed])
    assert code == 3
    assert "no such wheel" in out
    assert f"{len(TRIALS)} could not build" in said


def test_no_results_at_all_are_all_missing_and_not_an_error_of_usage(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, more=("--markdown",))
    assert code == 1
    assert "NOT all that was planned" in out
    assert f"{2 * len(TRIALS)} missing" in out
