"""Budgets: the file, the alarms in both directions, and the commands."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from repro.catalog import failures
from repro.commands import Stop, build_app
from repro.memory import budgets
from repro.memory.budgets import Budget, BudgetFileError, Key
from repro.observe.describe import describe
from repro.store.records import record
from repro.store.writer import Writer

FAILURE = next(iter(failures()))
TODAY = datetime.date(2026, 1, 31)
HELD = {"bytes": 900, "blocks": 2, "made_at": "transformers/trainer.py:1 evaluation_loop"}


def key(trial: str = "t1", device: str = "emulated", transformers: str = "5.24.0") -> Key:
    return Key(FAILURE, trial, device, transformers, "2.13.0")


def budget(nbytes: int = 1000, tolerance: int = 10, **where: str) -> Budget:
    return Budget(key(**where), "the plain run", nbytes, tolerance, "4 N", TODAY, "by hand")


def observed(peak: int | None, **where: str) -> dict[str, Any]:
    at = key(**where)
    return record(
        "observation",
        "cell",
        failure=at.failure,
        trial=at.trial,
        configuration={},
        device="cpu",
        transformers=at.transformers,
        torch=at.torch,
        end="completed",
        peak_bytes=peak,
        memory={"device": at.device, "holders": [HELD]},
    )


def held(*known: Budget) -> dict[Key, Budget]:
    return {each.key: each for each in known}


@pytest.mark.parametrize(
    ("peak", "state"), [(1000, "within"), (990, "within"), (1010, "within"), (1011, "over"), (989, "under")]
)
def test_alarms_go_off_both_ways_and_not_within_the_tolerance(peak: int, state: str) -> None:
    (check,) = budgets.check(held(budget()), [observed(peak)])
    assert check.state == state


def test_an_alarm_says_all_that_is_needed() -> None:
    (check,) = budgets.check(held(budget()), [observed(1500)])
    for part in (
        "1,500",
        "1,000",
        "+500",
        "900 bytes in 2 blocks",
        "evaluation_loop",
        "the plain run",
        f"repro matrix --transformers 5.24.0 --torch 2.13.0 --failures {FAILURE} --trial-set budgeted --again",
    ):
        assert part in str(check)


def test_a_peak_that_was_not_observed_in_a_cell_that_ran_is_an_alarm() -> None:
    checks = budgets.check(
        held(budget(), budget(trial="t2"), budget(transformers="4.57.6"), budget(device="cuda")),
        [observed(1000), observed(None, trial="t2"), observed(77, trial="t3")],
    )
    assert {(each.key.trial, each.key.device, each.key.transformers): each.state for each in checks} == {
        ("t1", "emulated", "5.24.0"): "within",
        ("t2", "emulated", "5.24.0"): "not observed",
        ("t3", "emulated", "5.24.0"): "no budget",
        ("t1", "emulated", "4.57.6"): "cell not run",
        ("t1", "cuda", "5.24.0"): "cell not run",
    }


text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)


@given(st.lists(st.tuples(text, st.integers(1, 10**13), st.integers(0, 10**9), text), max_size=5))
def test_a_budget_file_says_what_it_was_told(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    known = held(*(Budget(key(trial=row[0]), row[3], row[1], row[2], row[3], TODAY, row[3]) for row in rows))
    path = tmp_path_factory.mktemp("budgets") / "budgets.toml"
    budgets.write(path, known.values())
    assert budgets.read(path) == known


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("tolerance = 10\n", ""), "budget 1: field 'tolerance' is missing"),
        (lambda text: text.replace("bytes = 1_000", "bytes = -5"), "bytes must be positive"),
        (lambda text: text.replace("bytes = 1_000", 'bytes = "lots"'), "bytes is 'lots'; it must be of type int"),
        (lambda text: text.replace("bytes = 1_000", "bytes = true"), "bytes is True"),
        (lambda text: text.replace(FAILURE, "no-such-failure"), "no failure 'no-such-failure'"),
        (lambda text: text + text, "a second budget for"),
        (lambda text: text + "tolerence = 4\n", "unknown field 'tolerence'"),
        (lambda text: text + "[[budgets]]\n", "nothing but"),
        (lambda text: text + "what\n", "cannot be read as TOML"),
    ],
)
def test_a_file_edited_by_hand_is_read_with_care(tmp_path: Path, change: Any, says: str) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(change(budgets.dump([budget()])))
    with pytest.raises(BudgetFileError, match=says) as caught:
        budgets.read(path, failures())
    assert str(path) in str(caught.value)


def test_updating_keeps_what_holds_and_replaces_what_does_not() -> None:
    known = held(budget(), budget(trial="t2"), budget(trial="t4"))
    new = budgets.update(known, [observed(1005), observed(2000, trial="t2"), observed(7, trial="t3")], TODAY)
    assert new[key()] == known[key()]
    assert (new[key(trial="t2")].bytes, new[key(trial="t2")].tolerance) == (2000, 10)
    assert (new[key(trial="t3")].bytes, new[key(trial="t3")].tolerance) == (7, 0)
    assert new[key(trial="t4")] == known[key(trial="t4")]


def run(tmp_path: Path, command: str, *more: str) -> tuple[int, str]:
    arguments = ["budgets", command, "--file", str(tmp_path / "b.toml"), "--results", str(tmp_path / "results"), *more]
    result = CliRunner().invoke(build_app(), arguments)
    if isinstance(result.exception, Stop):
        return result.exception.code, str(result.exception)
    return result.exit_code, result.output


def test_the_commands_check_then_update_then_agree(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "results")
    writer.append(observed(1500))
    writer.close()
    assert run(tmp_path, "check")[0] == 3  # no file
    budgets.write(tmp_path / "b.toml", [budget()])
    code, output = run(tmp_path, "check")
    assert code == 1
    assert "over" in output
    code, output = run(tmp_path, "update")  # asked, and not answered
    assert code != 0
    assert "1,000 -> 1,500 bytes (+500)" in output or "nothing was written" in output
    assert budgets.read(tmp_path / "b.toml")[key()].bytes == 1000
    code, output = run(tmp_path, "update", "--yes")
    assert code == 0
    assert "1,000 -> 1,500 bytes (+500)" in output
    code, output = run(tmp_path, "check", "--json")
    assert code == 0
    assert '"state": "within"' in output


FILE = Path(__file__).parents[2] / "budgets.toml"
CELLS = sorted({(each.transformers, each.torch) for each in budgets.read(FILE, failures())})


def test_the_file_has_a_budget_for_every_peak_that_is_declared_to_have_one_and_for_no_other() -> None:
    declared = {failure.trial(c).id for failure in failures().values() for c in failure.budgeted}
    assert len(CELLS) >= 3
    for cell in CELLS:
        known = budgets.read(FILE, failures())
        assert {each.trial for each in known if (each.transformers, each.torch) == cell} == declared
        assert all(each.run and each.law and "repro matrix" in each.made for each in known.values())


def test_the_installed_release_keeps_its_budgets_and_a_changed_peak_does_not() -> None:
    failure = failures()["callback-eval-oom"]
    about = describe()
    trial = failure.trial(failure.reported)
    facts = failure.observe(trial)
    found = record(
        "observation",
        "cell",
        failure=failure.id,
        trial=trial.id,
        **{name: about[name] for name in ("transformers", "torch", "device")},
        **facts,
    )
    known = {key: each for key, each in budgets.read(FILE, failures()).items() if key == budgets.key_of(found)}
    if not known:
        pytest.skip(f"no budget is for transformers {about['transformers']} with torch {about['torch']}")
    assert [each.state for each in budgets.check(known, [found])] == ["within"]
    for moved, state in ((512, "over"), (-512, "under")):
        (alarm,) = budgets.check(known, [{**found, "peak_bytes": found["peak_bytes"] + moved}])
        assert alarm.state == state
        assert f"difference {moved:+,}" in str(alarm)
        assert "torch_pad_and_concatenate" in str(alarm)


def test_comparing_nothing_is_not_green(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "results")
    writer.append(observed(None))
    writer.close()
    budgets.write(tmp_path / "b.toml", [budget()])
    assert run(tmp_path, "check")[0] == 3


def test_the_desk_reads_budgets_laws_and_reports_without_torch() -> None:
    code = (
        "import sys, repro.memory.budgets, repro.memory.laws, repro.memory.report, repro.show.pictures;"
        "sys.exit(bool({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
