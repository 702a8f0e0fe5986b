"""Trials of device memory: a training run whose callback evaluates, on a device of a derived capacity.

The device is a GPU, in a child process under a cap, or the emulated one. Its capacity is measured, not chosen: it lies
as many times above what the run takes without the callback's evaluation as it lies below what the reported run takes.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from transformers import TrainingArguments

from repro.memory.meter import Meter, close_all, meter
from repro.memory.report import Phase, from_facts
from repro.memory.trainer_phases import EVALUATION_BATCH
from repro.observe import drift, fresh
from repro.observe.ctc_memory_run import Run, prepare, train
from repro.observe.ctc_trainer import all_finite
from repro.observe.ctc_workload import EMULATED, ON_CUDA, SAMPLES_PER_WORD, Workload
from repro.observe.gradients import Twins
from repro.speech import wav2vec2
from repro.vocabulary import Configuration, Facts, Level

NO_CURE: Mapping[str, Level] = {
    "callback": "when should_evaluate",
    "guard": "none",
    "call_batch": "unset",
    "schedule": "every 5 steps",
    "accumulation": "unset",
    "preprocess": "none",
    "batch_metrics": "no",
    "concat": "yes",
    "loss_only": "no",
    "eval_batch": "unset",
    "checkpointing": "no",
    "empty_cache_steps": "unset",
    "auto_find": "no",
}
"""The levels of the twin whose evaluation a cure has to leave as it was: as reported, on a device without limit."""

MAY_LACK = ("batch_eval_metrics", "eval_do_concat_batches", "torch_empty_cache_steps", "evaluation_strategy")
"""Arguments that came, or went, after transformers 4.36."""

CHILD_SECONDS = 300.0
SHARED = "REPRO_GPU_SHARED"
"""Environment variable: when set, a GPU that other processes use is used all the same."""

_TWINS: Twins[Run] = Twins()


def observe(configuration: Configuration, *, capacity: int, whole: bool = False) -> Facts:
    """Run one configuration on a device of this capacity, in bytes, and return its facts.

    `peak_bytes` is what the run takes where there is room: a run that does not fit the capacity is run once more
    without one. `phases` has the highest peak of each phase, `largest_holders` who holds what at the peak, `held` the
    same complete and by function, if `whole`; `memory` is the report of the run under the capacity.
    `inside_evaluation` is what was seen inside the callback's evaluations. `metrics` and `twin_metrics` are what the
    callback's evaluation gives, and what it gives without limit and cure.
    """
    run = _run(configuration, capacity, whole=whole)
    with_room = _run(configuration, None, whole=whole) if _did_not_fit(run) else run
    assert run.report is not None
    facts: dict[str, Any] = {
        "end": run.end,
        "capacity": capacity,
        # What a refused run took says nothing: it never came to what it would have taken it for.
        **({} if run.end == "refused" else _figures(with_room, whole=whole)),
        "memory": replace(run.report, phases=_joined(run.report.phases)).as_facts(),
        "losses": run.losses,
        "callback_evaluations": run.calls,
        "inside_evaluation": run.inside,
        "train_batch": _workload().train_batch,
    }
    if run.exception is not None:
        return {**facts, "exception": run.exception, "raised_in": run.raised_in}
    if run.calls:
        twin_of = configuration.but(**NO_CURE)
        twin = _TWINS.get(twin_of, lambda: _twin(twin_of))
        facts["metrics"], facts["twin_metrics"] = run.metrics(), twin.metrics()
        facts["transcriptions_equal"] = run.texts == twin.texts
    facts["loss_finite"] = all_finite(run.losses)
    facts["moved"] = run.moved
    return facts


@functools.lru_cache(maxsize=1)
def probe(plain: Configuration, reported: Configuration) -> Mapping[str, Any]:
    """Measure what the capacity and the hypothesis are made of, in bytes, on the device of this process.

    `training_peak`: the plain run's, without the callback; `reported_peak`: the reported one's; `capacity`: between.
    `resident`: what the device holds when an evaluation begins; `batch`: what the forward of one evaluation batch of
    `batch_of` examples takes; `frames`: of the longest clip, by lengths; `widening`: see `Workload`; `examples`: of
    each set. `lacks`: the training arguments that this release does not have.
    """
    training, evaluating = _run(plain, None), _run(reported, None)
    for run in (training, evaluating):
        if run.exception is not None:
            raise RuntimeError(f"no capacity can be derived: a run without limit raised {run.exception}")
    assert training.report is not None
    assert evaluating.report is not None
    smaller, larger = training.report.peak_bytes, evaluating.report.peak_bytes
    batches = [phase for phase in training.report.phases if phase.name == EVALUATION_BATCH]
    workload = _workload()
    return {
        "capacity": int(math.sqrt(smaller * larger)) // 512 * 512,
        "training_peak": smaller,
        "reported_peak": larger,
        "resident": batches[0].start_bytes,
        "batch": batches[0].peak_bytes - batches[0].start_bytes,
        "batch_of": max(evaluating.inside["batch_sizes"]),
        "widening": workload.widening,
        "frames": {lengths: _longest(workload.lengths(lengths)[1]) for lengths in ("equal", "ragged")},
        "lacks": [name for name in MAY_LACK if not drift.has_argument(TrainingArguments, name)],
        "examples": {
            "training set": workload.train_set,
            "evaluation set": workload.small_set,
            "part of the training set": workload.small_set,
        },
    }


def _longest(words: int) -> int:
    return wav2vec2.frames(words * SAMPLES_PER_WORD)


def _on_cuda() -> bool:
    return bool(torch.cuda.is_available())


def _workload() -> Workload:
    return ON_CUDA if _on_cuda() else EMULATED


def _did_not_fit(run: Run) -> bool:
    """Tell whether something was refused to a run, even if it was caught."""
    return run.out_of_memory or (run.report is not None and bool(run.report.refusals))


def _run(configuration: Configuration, capacity: int | None, *, whole: bool = False) -> Run:
    return _in_child(configuration, capacity) if _on_cuda() else _emulated(configuration, capacity, whole=whole)


def _emulated(configuration: Configuration, capacity: int | None, *, whole: bool = False) -> Run:
    close_all()
    fresh.start()
    run, prepared = Run(), prepare(configuration, EMULATED)
    with meter(capacity=capacity, whole=whole) as opened:
        train(configuration, EMULATED, prepared, run, opened)
    run.report = opened.report
    return run


def _twin(configuration: Configuration) -> Run:
    """Run without a limit and, where that can be had, without a meter."""
    if _on_cuda():
        run = _in_child(configuration, None)
    else:
        fresh.start()
        run = Run()
        train(configuration, EMULATED, prepare(configuration, EMULATED), run, None)
    if run.exception is not None:
        raise RuntimeError(f"the twin has to run without an error, and raised {run.exception}")
    return run


def _in_child(configuration: Configuration, capacity: int | None) -> Run:
    """Run in a child process on CUDA, which no cap, cached segment or workspace outlives."""
    from repro.memory import cuda

    answer = cuda.in_child(
        f"{__name__}:run_in_child",
        {"levels": dict(configuration)},
        capacity=capacity,
        timeout=CHILD_SECONDS,
        shared=SHARED in os.environ,
    )
    return Run(**{**answer["run"], "report": from_facts(answer["memory"])})


def run_in_child(opened: Meter, levels: Mapping[str, Level]) -> dict[str, Any]:
    """Run one configuration in this process, which has been given a GPU and a cap, and return it without the report."""
    fresh.quiet()
    fresh.start()
    configuration, run = Configuration(levels), Run()
    train(configuration, ON_CUDA, prepare(configuration, ON_CUDA), run, opened)
    return {"run": {name: value for name, value in asdict(run).items() if name != "report"}}


def _figures(run: Run, *, whole: bool) -> dict[str, Any]:
    assert run.report is not None
    report = run.report
    return {
        "peak_bytes": report.peak_bytes,
        "phases": {name: report.peak_of(name) for name in sorted({phase.name for phase in report.phases})},
        "largest_holders": [asdict(holder) for holder in report.holders[:4]],
        "meter": report.source,
        **({"held": report.held()} if whole else {}),
    }


def _joined(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Join evaluation batches that follow each other: there are as many as an evaluation has, and one picture."""
    joined: list[Phase] = []
    for phase in phases:
        last = joined[-1] if joined else None
        if last is not None and last.name == phase.name == EVALUATION_BATCH:
            peak = max(last.peak_bytes, phase.peak_bytes)
            joined[-1] = replace(last, end=phase.end, end_bytes=phase.end_bytes, peak_bytes=peak)
        else:
            joined.append(phase)
    return tuple(joined)
