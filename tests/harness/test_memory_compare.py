"""Peaks of the same trials in several releases, and who holds the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from repro.commands import Stop, build_app
from repro.memory.compare import differences
from repro.store.records import record
from repro.store.writer import Writer

ATTENTION, LOSS, RENAMED = "modeling.py Attention.forward", "loss.py ctc_loss", "modeling.py ForCTC.forward"


def observed(release: str, trial: str, peak: int, held: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    about = {"failure": "callback-eval-oom", "transformers": release, "torch": "2.13.0+cpu", "device": "cpu", **more}
    phases = {"train step": peak, "evaluation batch": 5, "gather": 5}
    facts = {"end": "completed", "peak_bytes": peak, "phases": phases, "memory": {"device": "emulated"}}
    return record("observation", "cell", trial=trial, **about, **facts, **({"held": held} if held else {}))


def test_trials_that_differ_alike_are_one_difference_which_functions_explain() -> None:
    old = {ATTENTION: 30, RENAMED: 10, "trainer.py step": 4}
    new = {ATTENTION: 20, LOSS: 10, "trainer.py step": 4}
    (same, moved) = differences(
        [
            *(observed("4.9.0", trial, 104) for trial in "abc"),
            observed("4.9.0", "d", 44, old),
            observed("4.9.0", "e", 45),
            *(observed("4.10.0", trial, 104) for trial in "abc"),
            observed("4.10.0", "d", 34, new),
            observed("4.10.0", "e", 35),
            observed("4.10.0", "only here", 1),
        ]
    )
    assert (same.release, same.against, same.bytes, same.trials) == ("4.9.0", "4.10.0", 0, ("a", "b", "c"))
    assert (moved.bytes, moved.trials, moved.phase) == (10, ("d", "e"), "train step")
    assert moved.explained
    assert set(moved.places) == {(ATTENTION, 10), (RENAMED, 10), (LOSS, -10)}
    assert sum(nbytes for _, nbytes in moved.told) == 10
    assert len(moved.told) == 1


def test_what_nobody_accounts_for_is_not_explained() -> None:
    (moved,) = differences([observed("4.9.0", "a", 5), observed("4.10.0", "a", 4)])
    assert not moved.explained
    (other,) = differences([observed("4.9.0", "a", 5, {LOSS: 5}), observed("4.10.0", "a", 3, {LOSS: 4})])
    assert not other.explained


def test_only_cells_that_differ_in_the_release_alone_are_compared() -> None:
    assert not differences([observed("4.9.0", "a", 5), observed("4.10.0", "a", 4, torch="2.7.1")])
    assert not differences([observed("4.9.0", "a", 5)])
    (named,) = differences([observed(release, "a", 5) for release in ("4.9.0", "4.10.0")], against="4.9.0")
    assert (named.release, named.against) == ("4.10.0", "4.9.0")


def run(results: Path, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), ["budgets", "compare", "--results", str(results), *more])
    if isinstance(result.exception, Stop):
        return result.exception.code, str(result.exception)
    return result.exit_code, result.output


def test_the_command_tells_the_difference_and_that_there_is_none(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.append(observed("4.9.0", "a", 44, {ATTENTION: 30, RENAMED: 14}))
    assert run(tmp_path) == (3, f"nothing to compare: {tmp_path} has no trial with a peak in two releases")
    writer.append(observed("4.10.0", "a", 34, {ATTENTION: 20, LOSS: 14}))
    writer.append(observed("4.10.1", "a", 34, {ATTENTION: 20, LOSS: 14}))
    writer.close()
    code, output = run(tmp_path)
    assert code == 0
    assert "4.9.0 against 4.10.1" in output
    assert "+10 bytes" in output
    assert ATTENTION in output
    assert RENAMED not in output
    assert "4.10.0 against 4.10.1" in output
    assert "the same to the byte" in output
    assert '"explained": true' in run(tmp_path, "--json")[1]
