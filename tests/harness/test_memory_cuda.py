"""The meter on CUDA: as far as a CPU allows, and the rest where there is a device."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from repro.memory import cuda
from repro.memory.drift import OutOfMemoryError
from repro.memory.meter import Meter, meter
from repro.memory.report import Event, Refusal

MIB = 1 << 20


def entry(action: str, size: int, addr: int = 0, line: int = 1) -> dict[str, Any]:
    frames = [
        {"filename": "/env/torch/nn/functional.py", "line": 9, "name": "linear"},
        {"filename": "/env/site/transformers/trainer.py", "line": line, "name": "evaluation_loop"},
    ]
    return {"action": action, "size": size, "addr": addr, "frames": frames}


def test_history_becomes_events_places_and_refusals() -> None:
    entries = [
        entry("segment_alloc", 2 * MIB),
        entry("alloc", 1024, addr=1),
        entry("alloc", 512, addr=2, line=2),
        entry("oom", 4096),
        entry("free_requested", 1024, addr=1),
        entry("free_completed", 1024, addr=1),
    ]
    events, places, refusals = cuda.read_history(entries, 2048)
    assert events == [Event(1, 1024, 1), Event(2, 512, 2), Event(1, -1024, 0)]
    assert places[2] == "site/transformers/trainer.py:2 evaluation_loop"
    assert refusals == (Refusal(4096, 1536, 2048, 2),)


def test_other_users_of_the_same_gpu_are_found() -> None:
    listing = "GPU-aa, 11, 300 MiB\nGPU-aa, 12, 100 MiB\nGPU-bb, 13, 5 MiB\nnonsense\n"
    assert cuda.other_users(listing, "GPU-aa", {11}) == ["process 12, 100 MiB"]
    assert cuda.other_users(listing, "aa", {11, 12}) == []
    assert len(cuda.other_users(listing, "", {11})) == 2


def test_a_gpu_in_use_or_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: object())
    monkeypatch.setattr(cuda, "_query", lambda question: "GPU-aa, 1, 9 MiB" if "apps" in question else "550.1\n")
    with pytest.raises(cuda.CudaUnavailableError, match=r"in use by other processes \(process 1, 9 MiB"):
        cuda.require_device()
    assert cuda.require_device(shared=True).startswith("Some GPU, driver 550.1, torch 2")

    def gone() -> int:
        raise RuntimeError("CUDA error: device is lost")

    monkeypatch.setattr(torch.cuda, "current_device", gone)
    with pytest.raises(cuda.CudaUnavailableError, match="does not answer: CUDA error: device is lost"):
        cuda.require_device()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_without_cuda_the_message_says_so() -> None:
    with pytest.raises(cuda.CudaUnavailableError, match="sees no CUDA device"):
        meter("cuda")
    with pytest.raises(cuda.CudaUnavailableError, match="sees no CUDA device"):
        cuda.in_child(f"{__name__}:fill", {}, capacity=64 * MIB, timeout=60)


def test_a_capacity_never_leaks_because_it_needs_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRO_CUDA_CHILD", raising=False)
    with pytest.raises(ValueError, match="in_child"):
        meter("cuda", capacity=64 * MIB)


def fill(m: Meter, mib: int) -> dict[str, Any]:
    """Allocate so many MiB at once, in the child."""
    with m.phase("fill"):
        try:
            block = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
        except OutOfMemoryError as error:
            return {"error": str(error)}
    return {"error": "", "held": block.numel(), "pid": os.getpid()}


@pytest.mark.gpu
def test_a_capped_child_runs_out_where_a_roomy_one_does_not() -> None:
    fits = cuda.in_child(f"{__name__}:fill", {"mib": 128}, capacity=512 * MIB, timeout=300)
    assert fits["error"] == ""
    assert fits["memory"]["peak_bytes"] == 128 * MIB
    assert fits["pid"] != os.getpid()
    fails = cuda.in_child(f"{__name__}:fill", {"mib": 1024}, capacity=512 * MIB, timeout=300)
    assert "CUDA out of memory" in fails["error"]
    assert fails["memory"]["refusals"]


@pytest.mark.gpu
def test_the_caching_allocators_figures_are_read_with_phases_and_places() -> None:
    cuda.warm_up()
    with meter("cuda") as m:
        with m.phase("train step"):
            kept = torch.zeros(MIB, device="cuda")
        with m.phase("evaluation batch"):
            torch.zeros(2 * MIB, device="cuda")
    assert m.report.peak_bytes == 12 * MIB
    assert m.report.live_bytes == 4 * MIB
    assert m.report.peak_of("train step") == 4 * MIB
    assert "test_memory_cuda.py" in m.report.holders[0].made_at
    assert "torch" in m.report.hardware
    del kept


def test_a_child_that_dies_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "require_device", lambda **_: "Some GPU")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match=r"died in its CUDA child process \(exit code 1"):
        cuda.in_child("a:b", {}, capacity=None, timeout=60)

    def slow(*_: Any, **given: Any) -> None:
        raise subprocess.TimeoutExpired("child", given["timeout"])

    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(TimeoutError, match="a:b did not end within 60 s"):
        cuda.in_child("a:b", {}, capacity=None, timeout=60)
