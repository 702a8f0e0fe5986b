"""Proof that the suite can go red: each mutant of the harness is caught by the check that is named for it.

A mutant changes the real code while a real check runs, and the check has to fail; the same check passes without it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.catalog import find
from repro.judge.verdicts import verdicts
from repro.memory import budgets
from repro.memory.allocator import AllocatorBook
from repro.memory.ledger import LedgerBook
from repro.memory.meter import Source, meter
from repro.nightly import plan as planning
from repro.observe import gradients, plugin, whisper_model, whisper_setup, whisper_trainer
from repro.observe.observer import Observer
from repro.store.reader import read
from repro.store.writer import Writer
from repro.vocabulary import Claim, Configuration, Scope, Trial

from . import test_gradients, test_ledger, test_memory_budgets, test_memory_meter

ROOT = Path(__file__).parents[2]
WHISPER = find("whisper-double-backward")
# Adapters leave the encoder's input without a gradient, so that this fails in every release; not so without reentrance.
BROKEN = WHISPER.configuration(checkpointing="method", use_reentrant="True", lora="before")
CURED = BROKEN.but(use_reentrant="False")
PLAIN = WHISPER.configuration()


def central_test() -> Callable[[Trial, Observer], None]:
    """Return the test that runs in every cell."""
    spec = importlib.util.spec_from_file_location("outcomes", ROOT / "tests" / "failures" / "test_outcomes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check: Callable[[Trial, Observer], None] = module.test_outcome_is_the_one_that_the_trigger_predicts
    return check


@pytest.fixture(scope="module")
def observer(tmp_path_factory: pytest.TempPathFactory) -> Observer:
    made = Observer(tmp_path_factory.mktemp("results"))
    made.mechanism(WHISPER.id)
    return made


@pytest.fixture(autouse=True)
def _own_twins() -> Iterator[None]:
    """Forget twins, so that no mutant leaves one behind for others or finds an honest one."""
    whisper_model._TWINS._known.clear()
    whisper_trainer._TWINS._known.clear()
    yield
    whisper_model._TWINS._known.clear()
    whisper_trainer._TWINS._known.clear()


def outcome_check(configuration: Configuration, observer: Observer, scope: Scope = "model") -> None:
    """Run one trial through the test that runs in every cell."""
    central_test()(WHISPER.trial(configuration, scope), observer)


def test_a_cure_that_does_nothing_is_caught_by_the_outcome_of_its_trial(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome_check(CURED, observer)
    monkeypatch.setitem(whisper_setup.REENTRANT, "False", True)
    with pytest.raises(pytest.fail.Exception, match=r"expected: +trains\n +observed: +loss has no gradient"):
        outcome_check(CURED, observer)


def swallow_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = torch.Tensor.backward

    def swallowing(self: torch.Tensor, *positional: Any, **named: Any) -> None:
        with contextlib.suppress(RuntimeError):
            backward(self, *positional, **named)

    monkeypatch.setattr(torch.Tensor, "backward", swallowing)


def test_a_cure_that_swallows_the_exception_is_caught_by_the_outcome_and_never_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = Observer(tmp_path)
    outcome_check(BROKEN, observer)
    swallowed = BROKEN.but(attention="eager")  # a change that does nothing by itself, so that all is the mutant's doing
    with monkeypatch.context() as mutant:
        swallow_errors(mutant)
        with pytest.raises(pytest.fail.Exception, match=r"observed: +gradients missing"):
            outcome_check(swallowed, observer)
    claim = Claim("swallow", "catch the exception", "report", change={"attention": "eager"})
    advised = replace(WHISPER, reported=BROKEN, reported_scope="model", claims=(claim,))
    [verdict] = verdicts(advised, read(tmp_path).records)
    assert verdict["verdict"] == "moves it"


def test_a_trainer_that_skips_the_backward_is_caught_by_the_outcome_of_the_plain_run(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import Accelerator

    checkpointed = WHISPER.configuration(checkpointing="arguments", use_reentrant="False")
    outcome_check(checkpointed, observer, "trainer")
    monkeypatch.setattr(Accelerator, "backward", lambda *_, **__: None)
    with pytest.raises(pytest.fail.Exception, match=r"expected: +trains\n +observed: +gradients missing"):
        outcome_check(checkpointed, observer, "trainer")


COMPARISONS = (
    lambda: test_gradients.test_a_gradient_that_only_the_twin_has_is_named_missing(),
    lambda: test_gradients.test_the_tolerance_is_exact_at_its_edge("fp32", 1.01, True),
    lambda: test_gradients.test_one_wrong_element_among_many_is_found(),
    lambda: test_gradients.test_a_gradient_that_is_not_finite_is_named(),
)


@pytest.mark.parametrize("check", COMPARISONS, ids=["missing", "tolerance", "one element", "not finite"])
def test_a_gradient_comparison_that_always_agrees_is_caught_by_each_test_of_it(
    check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check()
    compare = gradients.compare
    monkeypatch.setattr(gradients, "compare", lambda _, twin, precision: compare(twin, twin, precision))
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(("book", "source"), [(AllocatorBook, "allocator"), (LedgerBook, "ledger")])
def test_a_meter_that_counts_half_is_caught_by_bytes_counted_by_hand_and_by_a_budget(
    book: type, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_memory_meter.test_peak_and_live_are_exact(source)
    honest = book.peak  # type: ignore[attr-defined]
    monkeypatch.setattr(book, "peak", property(lambda self: honest.fget(self) // 2))
    with pytest.raises(AssertionError):
        test_memory_meter.test_peak_and_live_are_exact(source)
    with meter(source=source) as halved:
        kept = torch.zeros(1000 * 128)
    del kept
    known = test_memory_budgets.held(test_memory_budgets.budget(1000 * 512))
    [held] = budgets.check(known, [test_memory_budgets.observed(halved.peak)])
    assert held.state == "under"


def test_a_budget_left_blank_is_caught_when_the_file_is_read_and_an_empty_file_when_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    whole = budgets.dump([test_memory_budgets.budget()])
    path.write_text(whole)
    assert len(budgets.read(path)) == 1
    for blank in (whole.replace("bytes = 1_000", 'bytes = ""'), whole.replace("bytes = 1_000\n", "")):
        assert blank != whole
        path.write_text(blank)
        with pytest.raises(budgets.BudgetFileError, match="bytes"):
            budgets.read(path)
    path.write_text("")
    writer = Writer(tmp_path / "results")
    writer.append(test_memory_budgets.observed(1500))
    code, said = test_memory_budgets.run(tmp_path, "check")
    assert (code, "nothing was compared" in said) == (3, True)


def test_a_plan_without_cells_is_caught_by_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [test_ledger.observed(release) for release in test_ledger.RELEASES]
    assert test_ledger.run(tmp_path, *everything)[0] == 0
    monkeypatch.setattr(planning, "as_matrix", lambda _: {"include": []})
    code, _, said = test_ledger.run(tmp_path, *everything)
    assert (code, "the plan has no cells" in said) == (1, True)


@pytest.mark.parametrize("lost", test_ledger.RELEASES)
def test_results_that_lack_a_shard_are_caught_by_the_ledger(tmp_path: Path, lost: str) -> None:
    kept = [test_ledger.observed(release) for release in test_ledger.RELEASES if release != lost]
    code, _, said = test_ledger.run(tmp_path, *kept)
    assert (code, f"{len(test_ledger.TRIALS)} missing" in said) == (1, True)


MARKED = """
    import pytest

    @pytest.mark.gpu
    def test_on_gpu():
        pass
"""


def test_a_gpu_marker_on_a_machine_without_one_is_caught_and_the_check_for_it_is_what_catches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(textwrap.dedent(MARKED))
    words = ["-q", "-p", "no:cacheprovider", "-p", "repro.observe.plugin", "-c", os.devnull, "--rootdir", str(tmp_path)]
    monkeypatch.setattr(plugin, "_has_cuda", lambda: False)
    assert pytest.main([*words, "-m", "gpu", str(tmp_path)]) == pytest.ExitCode.USAGE_ERROR
    monkeypatch.setattr(plugin, "_asks_for_gpu", lambda _: False)
    assert pytest.main([*words, "-m", "gpu", str(tmp_path)]) == pytest.ExitCode.OK, "only the named check is in the way"
