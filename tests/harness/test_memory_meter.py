"""The meter against bytes computed by hand, wherever bytes could be lost, doubled or put on the wrong side."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from repro.memory import allocator, report
from repro.memory import meter as meter_module
from repro.memory.drift import OutOfMemoryError
from repro.memory.meter import Meter, Source, close_all, meter
from repro.memory.temporaries import temporaries
from repro.memory.witness import profiled_peak

KIB = 1024
DEVICE = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _leave_what_is_imported_alone() -> Iterator[None]:
    """Spare each meter's collection the walk through every imported module."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=["allocator", "ledger"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    yield request.param
    assert close_all() == 0, "the test left a meter open"


def floats(kib: int) -> torch.Tensor:
    """Make a tensor of so many KiB."""
    return torch.zeros(kib * 256)


# --- counting ---


def test_peak_and_live_are_exact(source: Source) -> None:
    with meter(source=source) as m:
        first = floats(8)
        second = floats(4)
        del first
        third = floats(2)
        assert m.live == 6 * KIB
        assert m.peak == 12 * KIB
    assert (m.report.peak_bytes, m.report.live_bytes) == (12 * KIB, 6 * KIB)
    del second, third


def test_sizes_are_rounded_up_to_blocks(source: Source) -> None:
    with meter(source=source) as m:
        kept = [torch.zeros(1), torch.zeros(128), torch.zeros(129)]
        assert m.live == 512 + 512 + 1024
    with meter(source=source, granularity=1) as m:
        kept = [torch.zeros(1), torch.zeros(129)]
        assert m.live == 4 + 4 * 129
    del kept


def test_empty_tensors_cost_nothing(source: Source) -> None:
    with meter(source=source) as m:
        empty = torch.zeros(0, 5)
        assert (m.live, m.peak) == (0, 0)
    del empty


def test_views_cost_nothing_and_keep_their_storage(source: Source) -> None:
    with meter(source=source) as m:
        whole = floats(8)
        view = whole[:10].view(2, 5).t().detach()
        assert m.peak == 8 * KIB
        del whole
        assert m.live == 8 * KIB
        del view
        assert m.live == 0


def test_a_resize_makes_the_new_block_before_it_drops_the_old_one(source: Source) -> None:
    with meter(source=source) as m:
        tensor = floats(2)
        tensor.resize_(4 * 256)
        assert m.live == 4 * KIB
        assert m.peak == 6 * KIB


def test_setting_data_moves_the_charge_with_the_storage(source: Source) -> None:
    with meter(source=source) as m:
        weight = torch.nn.Parameter(floats(4))
        weight.data = floats(2)
        assert m.live == 2 * KIB
        assert m.peak == 6 * KIB


def test_backward_keeps_gradients_and_frees_what_forward_saved(source: Source) -> None:
    with meter(source=source) as m:
        weight = floats(4).requires_grad_()
        loss = (weight.exp() ** 2).sum()  # saves exp's result, and the square's input, which is the same storage
        assert m.live == 4 * KIB + 4 * KIB + 512
        loss.backward()
        del loss
        assert m.live == 4 * KIB + 4 * KIB  # weight and gradient


def test_no_grad_saves_nothing(source: Source) -> None:
    with meter(source=source) as m:
        weight = floats(4).requires_grad_()
        with torch.no_grad():
            loss = (weight.exp() ** 2).sum()
        assert m.live == 4 * KIB + 512
        assert m.peak == 12 * KIB
    del loss


def test_autocast_casts_are_counted_while_its_cache_holds_them(source: Source) -> None:
    with meter(source=source) as m:
        weight = torch.zeros(64, 64, requires_grad=True)  # 16 KiB, and 8 KiB in bfloat16
        given = torch.zeros(64, 64, dtype=torch.bfloat16)  # 8 KiB
        with torch.autocast("cpu", torch.bfloat16):
            made = given @ weight  # 8 KiB
            assert m.live == (16 + 8 + 8 + 8) * KIB
            made = made.detach()
        assert m.live == (16 + 8 + 8) * KIB
    del made


def test_autograds_own_threads_are_counted(source: Source) -> None:
    """Reentrant backward, nested deep enough, goes on in another thread of autograd's pool."""

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            threads.add(threading.get_ident())
            if ctx.depth:
                with torch.enable_grad():
                    x = torch.zeros(1, requires_grad=True)
                    Nested.apply(x, ctx.depth - 1).sum().backward()
            else:
                kept.append(floats(16))
            return grad, None

    kept: list[torch.Tensor] = []
    threads: set[int] = set()
    with meter(source=source) as m:
        x = torch.zeros(1, requires_grad=True)
        Nested.apply(x, 70).sum().backward()
        assert len(kept) == 1
        assert 16 * KIB <= m.live <= 16 * KIB + 2 * 512  # and x, and its gradient
    assert len(threads) > 1, "autograd did not change threads; the test tests nothing"


def test_threads_started_by_hand_are_the_allocators_to_see() -> None:
    seen = {}
    for source in ("allocator", "ledger"):
        kept: list[torch.Tensor] = []
        with meter(source=source) as m:
            thread = threading.Thread(target=lambda to=kept: to.append(floats(4)))
            thread.start()
            thread.join()
            seen[source] = m.live
    assert seen == {"allocator": 4 * KIB, "ledger": 0}


# --- the line between host and device ---


def test_what_was_there_before_is_the_hosts_until_it_is_moved(source: Source) -> None:
    model = torch.nn.Linear(256, 4, bias=False)
    with meter(source=source) as m:
        assert m.live == 0
        model.to(DEVICE)
        assert m.live == 4 * KIB
        model.to(DEVICE)  # it is there already
        assert m.live == 4 * KIB


def test_cpu_really_copies(source: Source) -> None:
    with meter(source=source) as m:
        there = floats(4)
        here = there.cpu()
        also = there.to("cpu")
        assert m.live == 4 * KIB
        assert here.data_ptr() != there.data_ptr() != also.data_ptr()
        assert torch.equal(here, there)
        del there
        assert m.live == 0
        assert here.cpu() is here
        back = here.to(DEVICE)
        assert m.live == 4 * KIB
        assert back.data_ptr() != here.data_ptr()


def test_numpy_lends_host_memory(source: Source) -> None:
    array = np.zeros(1024, dtype=np.float32)
    with meter(source=source) as m:
        lent = torch.from_numpy(array)
        also = torch.as_tensor(array)
        assert m.peak == 0
        lent.add_(1)
        assert array[0] == 1
        moved = lent.to(DEVICE)
        assert m.live == 4 * KIB
        assert moved.numpy().shape == (1024,)  # shares the device's block; makes none
        assert m.live == 4 * KIB
    del also


def test_a_host_scope_makes_host_memory(source: Source) -> None:
    with meter(source=source) as m:
        with m.host():
            here = floats(4)
        assert m.peak == 0
        there = here.to(DEVICE)
        assert m.live == 4 * KIB
    del there


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256,), float(index))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("pinned", [False, True])
def test_a_loaders_batches_are_the_hosts(source: Source, workers: int, pinned: bool) -> None:
    method = "fork" if workers and "fork" in multiprocessing.get_all_start_methods() else None
    # Less than a batch fits: a worker that were metered, being a fork of a metered process, would run out of memory.
    with meter(source=source, capacity=2 * KIB) as m:
        loader = DataLoader(
            Numbers(), batch_size=4, num_workers=workers, pin_memory=pinned, multiprocessing_context=method
        )
        total = sum(float(batch.numpy().sum()) for batch in loader)
        assert total == 256 * sum(range(8))
        assert m.peak <= 512  # the loader's seed
        with pytest.raises(OutOfMemoryError):
            next(iter(loader)).to(DEVICE)


def test_torch_is_left_as_it_was(source: Source) -> None:
    before = (torch.Tensor.cpu, torch.Tensor.to, DataLoader.__iter__, "cpu" in vars(torch.Tensor))
    with meter(source=source), meter(source="ledger"):
        assert torch.Tensor.cpu is not before[0]
    assert (torch.Tensor.cpu, torch.Tensor.to, DataLoader.__iter__, "cpu" in vars(torch.Tensor)) == before


def test_masks_made_under_vmap_have_no_storage_and_do_no_harm(source: Source) -> None:
    with meter(source=source) as m:
        out = torch.func.vmap(lambda row: row * 2)(torch.zeros(4, 256))
        assert out.shape == (4, 256)
        assert m.live == 4 * KIB


# --- capacity ---


def test_the_exact_capacity_fits_and_a_block_less_does_not(source: Source) -> None:
    def run(capacity: int) -> None:
        with meter(source=source, capacity=capacity):
            first = floats(4)
            second = first.exp()
            del first, second

    run(8 * KIB)
    with pytest.raises(OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 4096 bytes"):
        run(8 * KIB - 512)
    with pytest.raises(OutOfMemoryError):
        run(8 * KIB - 1)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=12), block=st.sampled_from([1, 512, 4096]))
def test_any_run_fits_its_own_peak_and_nothing_below(sizes: list[int], block: int) -> None:
    def run(capacity: int | None, which: Source) -> int:
        with meter(source=which, capacity=capacity, granularity=block) as m:
            alive = []
            for index, size in enumerate(sizes):
                alive.append(torch.empty(size))
                if index % 3 == 2:
                    alive.pop(0)
            del alive
        assert m.live == 0
        return m.peak

    for which in ("allocator", "ledger"):
        peak = run(None, which)
        assert peak == run(peak, which)
        with pytest.raises(OutOfMemoryError):
            run(peak - 1, which)
    assert run(None, "allocator") == run(None, "ledger")


def test_a_refusal_is_the_real_exception_and_is_reported(source: Source) -> None:
    with meter(source=source, capacity=4 * KIB) as m:
        kept = floats(3)
        with pytest.raises(RuntimeError) as caught:
            floats(2)
        assert m.live == 3 * KIB
    assert caught.type is OutOfMemoryError
    assert m.report.refusals == (report.Refusal(2 * KIB, 3 * KIB, 4 * KIB, 1),)
    assert m.report.peak_bytes == 3 * KIB
    del kept


def test_nothing_stays_behind_once_the_error_is_let_go(source: Source) -> None:
    def fails() -> None:
        held = [floats(1) for _ in range(3)]
        held.append(floats(2))

    with meter(source=source, capacity=4 * KIB) as m:
        try:
            fails()
        except OutOfMemoryError:
            assert m.live == 3 * KIB  # the traceback holds the frame, and it holds these
        gc.collect()
        assert m.live == 0
        fits = floats(4)
        assert m.live == 4 * KIB
    del fits


def test_running_out_of_memory_while_handling_it(source: Source) -> None:
    def run_out_twice() -> None:
        try:
            floats(1)
        except OutOfMemoryError:
            floats(4)

    with meter(source=source, capacity=2 * KIB) as m:
        kept = floats(2)
        with pytest.raises(OutOfMemoryError) as caught:
            run_out_twice()
        assert isinstance(caught.value.__context__, OutOfMemoryError)
        assert [each.wanted for each in m.report.refusals] == [KIB, 4 * KIB]
        del caught, kept
        assert m.live == 0
        fits = floats(2)
        assert m.live == 2 * KIB
    del fits


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "8"])
def test_a_senseless_capacity_is_refused(capacity: Any) -> None:
    with pytest.raises(ValueError, match=r"capacity is .* must be a positive number of bytes"):
        meter(capacity=capacity)
    with pytest.raises(ValueError, match="granularity is"):
        meter(granularity=-512)
    with pytest.raises(ValueError, match="has no source"):
        meter("emulated", "cuda")
    assert close_all() == 0


def test_negative_sizes_stay_torchs_own_error(source: Source) -> None:
    with meter(source=source) as m:
        with pytest.raises(RuntimeError, match="negative"):
            torch.zeros(-4)
        assert (m.live, m.peak) == (0, 0)


# --- nesting, and meters left behind ---


def test_a_nested_meter_counts_from_its_own_baseline(source: Source) -> None:
    with meter(source=source, capacity=10 * KIB) as outer:
        kept = floats(4)
        with meter(source=source, capacity=4 * KIB) as inner:
            more = floats(2)
            assert (inner.live, outer.live) == (2 * KIB, 6 * KIB)
            with pytest.raises(OutOfMemoryError, match=f"total capacity of {4 * KIB} "):
                floats(3)
            del kept
            assert inner.live == -2 * KIB
        assert inner.peak == 2 * KIB
        with pytest.raises(OutOfMemoryError, match=f"total capacity of {10 * KIB} "):
            floats(9)
        with pytest.raises(ValueError, match="granularity"):
            meter(source=source, granularity=1)
    assert (outer.peak, outer.live) == (6 * KIB, 2 * KIB)
    assert len(inner.report.refusals) == 1
    assert len(outer.report.refusals) == 2
    del more


def test_both_sources_can_watch_one_run() -> None:
    with meter(source="allocator") as exact, meter(source="ledger") as ledger:
        there = floats(4).cpu().to(DEVICE)
        kept = there.exp()
        assert exact.live == ledger.live == 8 * KIB
    assert exact.peak == ledger.peak == 8 * KIB
    del kept


def test_an_exception_closes_the_meter(source: Source) -> None:
    opened: list[Meter] = []

    def raises() -> None:
        with meter(source=source) as m:
            opened.append(m)
            floats(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        raises()
    floats(64)
    assert opened[0].report.peak_bytes == KIB


def test_a_meter_left_open_ends_with_the_one_around_it_or_when_told(source: Source) -> None:
    with meter(source=source) as outer:
        inner = meter(source=source)
        floats(1)
    floats(64)
    assert inner.peak == outer.peak == KIB
    left = meter(source=source)
    assert close_all() == 1
    floats(64)
    assert left.peak == 0
    with meter(source=source) as clean:
        floats(2)
    assert clean.peak == 2 * KIB


def test_an_earlier_runs_garbage_is_not_counted(source: Source) -> None:
    def leave_a_cycle() -> None:
        loop: list[Any] = [floats(64)]
        loop.append(loop)

    peaks = set()
    for _ in range(3):
        with meter(source=source) as m:
            leave_a_cycle()
            floats(1)
        peaks.add(m.peak)
    assert peaks == {65 * KIB}


def test_garbage_is_collected_before_a_nested_baseline_is_taken(source: Source) -> None:
    with meter(source=source):
        loop: list[Any] = [floats(64)]
        loop.append(loop)
        del loop
        with meter(source=source) as inner:
            gc.collect()
            floats(1)
        assert inner.peak == KIB


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_not_metered(source: Source) -> None:
    with meter(source=source, capacity=2 * KIB) as m:
        child = os.fork()
        if child == 0:
            try:
                floats(8)
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert m.peak == 0


def test_blocks_may_outlive_their_meter(source: Source) -> None:
    with meter(source=source):
        outlives = floats(8)
    with meter(source=source) as m:
        del outlives
        assert (m.live, m.peak) == (0, 0)
        floats(1)
        assert m.peak == KIB


# --- reports ---


def test_a_report_says_when_who_and_where(source: Source) -> None:
    with meter(source=source) as m:
        with m.phase("train step"):
            kept = [floats(4) for _ in range(3)]  # made here
        with m.phase("evaluation batch"):
            passing = floats(16)
            del passing
        with m.phase("evaluation batch"):
            floats(2)
    seen = m.report
    assert seen.peak_of("train step") == 12 * KIB
    assert seen.peak_of("evaluation batch") == 28 * KIB
    assert max(point.bytes for point in seen.timeline) == seen.peak_bytes == 28 * KIB
    assert [holder.bytes for holder in seen.holders] == [16 * KIB, 12 * KIB]
    assert seen.holders[1].blocks == 3
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# made here"))
    assert f"test_memory_meter.py:{line}" in seen.holders[1].made_at
    with pytest.raises(LookupError, match="'gather' never happened"):
        seen.peak_of("gather")
    assert report.from_facts(seen.as_facts()) == seen
    del kept


def test_a_whole_meter_accounts_for_every_byte_of_the_peak_by_function(source: Source) -> None:
    def makes_small_ones() -> list[torch.Tensor]:
        return [floats(1) for _ in range(20)]

    with meter(source=source, whole=True) as m:
        big = floats(1024)
        small = makes_small_ones()
    held = m.report.held()
    assert sum(held.values()) == sum(holder.bytes for holder in m.report.holders) == m.report.peak_bytes
    assert held == {"harness/test_memory_meter.py floats": 1044 * KIB}
    assert [holder.bytes for holder in m.report.holders if "makes_small_ones" in holder.made_at] == [20 * KIB]
    del big, small


def test_small_blocks_are_listed_by_phase(source: Source) -> None:
    with meter(source=source) as m:
        big = floats(1024)
        with m.phase("gather"):
            small = [floats(1) for _ in range(5)]
    assert report.Holder(5 * KIB, 5, "small blocks, made in: gather") in m.report.holders
    del big, small


@given(st.lists(st.integers(-1000, 1000), max_size=3000), st.integers(1, 50))
def test_a_condensed_timeline_loses_no_peak(changes: list[int], buckets: int) -> None:
    live = report.lives(report.Event(0, change, 0) for change in changes)
    points = report.timeline(live, buckets)
    assert len(points) <= buckets
    assert max(point.bytes for point in points) == max(live)
    assert [point.event for point in points] == sorted({point.event for point in points})


def test_past_the_logs_limit_figures_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.memory.ledger.LOG_LIMIT", 3)
    with meter(source="ledger") as m:
        kept = [floats(1) for _ in range(10)]
    assert m.report.peak_bytes == 10 * KIB
    assert not m.report.complete
    del kept


# --- witnesses against each other ---


def train(seed: int = 0) -> float:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.GELU(),
        torch.nn.LayerNorm(256),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(256, 64),
    )
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    loss = torch.zeros(())
    for _ in range(2):
        loss = net(torch.randn(32, 64)).log_softmax(-1).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


@pytest.mark.parametrize("granularity", [1, 512])
def test_torchs_profiler_agrees_with_the_allocator_to_the_byte(granularity: int) -> None:
    train()
    with meter(source="allocator", granularity=granularity) as m:
        train()
    gc.collect()
    assert profiled_peak(train, granularity) == m.peak


def test_two_meters_differ_by_temporaries_that_are_listed() -> None:
    train()
    with meter(source="allocator") as exact, meter(source="ledger") as ledger:
        train()
    with meter(source="allocator"), temporaries() as table:
        train()
    assert "aten.native_layer_norm_backward.default" in table
    assert 0 <= exact.peak - ledger.peak <= max(table.values())


def test_metering_changes_no_number(source: Source) -> None:
    plain = train()
    with meter(source=source):
        assert train() == plain


def test_ten_runs_spread_by_zero_bytes(source: Source) -> None:
    peaks = set()
    for _ in range(10):
        with meter(source=source) as m:
            train()
        peaks.add((m.peak, m.report.events))
    assert len(peaks) == 1


# --- without a compiler ---

_FALLS_BACK = """
from repro.memory.meter import meter
import torch
for _ in range(2):
    with meter(capacity=1024) as m:
        kept = torch.zeros(256)
    print(m.source, m.peak)
    del kept
try:
    meter(source="allocator")
except RuntimeError as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["/nowhere/c++", "false", "damaged"])
def test_without_a_working_compiler_the_ledger_stands_in_and_says_so_once(compiler: str, tmp_path: Path) -> None:
    if compiler == "damaged":
        script = tmp_path / "c++"
        script.write_text("#!/bin/sh\necho 'allocator.cpp:1: fatal: out of ideas' >&2\nexit 1\n")
        script.chmod(0o755)
        compiler = str(script)
    environment = {**os.environ, "CXX": compiler, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", _FALLS_BACK], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:3] == ["ledger 1024", "ledger 1024", "AllocatorUnavailableError"]
    assert done.stderr.count("no counting allocator") == 1
    if "c++" in compiler and tmp_path.name in compiler:
        assert "out of ideas" in done.stderr


def test_a_build_is_reused_and_a_failed_one_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(allocator.AllocatorUnavailableError, match="false failed"):
        allocator.build(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("CXX")
    built = allocator.build()
    stamp = built.stat().st_mtime_ns
    assert allocator.build() == built
    assert built.stat().st_mtime_ns == stamp


def test_the_fallback_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def unavailable() -> None:
        raise allocator.AllocatorUnavailableError("no C++ compiler")

    monkeypatch.setattr(allocator, "counting_library", unavailable)
    monkeypatch.setattr(meter_module, "_said", set())
    for _ in range(2):
        with meter() as m:
            assert m.source == "ledger"
    said = capsys.readouterr().err
    assert said.count("no counting allocator here (no C++ compiler)") == 1
