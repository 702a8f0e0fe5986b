"""One training run whose callback evaluates, as a configuration says, and what is seen of it while it goes."""

from __future__ import annotations

import contextlib
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

from repro.memory.meter import Meter
from repro.memory.report import Report
from repro.memory.trainer_phases import phases_of
from repro.observe import ctc_trainer, raised
from repro.observe.ctc_callback import EvaluatingCallback, Setting
from repro.observe.ctc_workload import Workload
from repro.speech import wav2vec2
from repro.vocabulary import Configuration, Level


@dataclass
class Run:
    """What was seen of one run; JSON values but for the report.

    `calls`: the steps at which the callback evaluated. `inside`: what held inside its evaluations. `texts`: a digest of
    what its last one transcribed. `raised_in`: the telling functions that an error passed through, outermost first.
    """

    end: str = "completed"
    exception: dict[str, Any] | None = None
    raised_in: list[str] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    inside: dict[str, list[Any]] = field(default_factory=dict)
    texts: str = ""
    moved: bool | None = None
    report: Report | None = None

    def metrics(self) -> dict[str, float]:
        """Return the loss and the metric of the callback's last evaluation, as far as it has them."""
        rows = [row for row in self.log if "train_loss" in row]
        wanted = ("train_loss", "train_wer", "train_examples")
        return {key: row[key] for row in rows[-1:] for key in wanted if key in row}

    @property
    def out_of_memory(self) -> bool:
        """Tell whether the device was full."""
        return self.exception is not None and self.exception["type"] == "OutOfMemoryError"


@dataclass(frozen=True)
class Prepared:
    """What exists on the host before a device is opened: nothing of it counts, nor do copies kept for comparing."""

    model: Any
    movement: ctc_trainer.Movement
    train_set: Any
    small_set: Any
    evaluated: Any


def prepare(configuration: Configuration, workload: Workload) -> Prepared:
    """Build the model and the sets of a run."""
    shortest, longest = workload.lengths(str(configuration["lengths"]))
    train_set = wav2vec2.prepared(workload.train_set, 0, shortest, longest)
    small_set = wav2vec2.prepared(workload.small_set, 1, shortest, longest)
    sets = {
        "training set": train_set,
        "evaluation set": small_set,
        "part of the training set": train_set.select(range(workload.small_set)),
    }
    vocabulary = workload.widening * int(configuration["vocabulary"])
    model = wav2vec2.build(layers=workload.layers, width=workload.width, vocabulary=vocabulary)
    return Prepared(model, ctc_trainer.Movement(model), train_set, small_set, sets[str(configuration["dataset"])])


SCHEDULES: Mapping[Level, Mapping[str, Any]] = {
    "every 5 steps": {"eval_strategy": "steps", "eval_steps": 5},
    "every 100 steps": {"eval_strategy": "steps", "eval_steps": 100, "max_steps": 100},
    "epoch": {"eval_strategy": "epoch"},
    "epoch, as written": {"evaluation_strategy": "epoch"},
}
SWITCHES: Mapping[str, tuple[Level, Mapping[str, Any]]] = {
    "batch_metrics": ("yes", {"batch_eval_metrics": True}),
    "concat": ("no", {"eval_do_concat_batches": False}),
    "loss_only": ("yes", {"prediction_loss_only": True}),
    "checkpointing": ("yes", {"gradient_checkpointing": True}),
    "auto_find": ("yes", {"auto_find_batch_size": True}),
}
NUMBERS = {
    "accumulation": "eval_accumulation_steps",
    "eval_batch": "per_device_eval_batch_size",
    "empty_cache_steps": "torch_empty_cache_steps",
}


def arguments(configuration: Configuration, workload: Workload) -> dict[str, Any]:
    """Return the training arguments of a configuration, each by its newest name but where the old one is meant."""
    values: dict[str, Any] = {
        "max_steps": workload.steps,
        "logging_steps": workload.steps,
        "per_device_train_batch_size": workload.train_batch,
        **SCHEDULES[configuration["schedule"]],
    }
    for factor, (level, switched) in SWITCHES.items():
        if configuration[factor] == level:
            values |= switched
    for factor, argument in NUMBERS.items():
        if configuration[factor] != "unset":
            values[argument] = int(configuration[factor])
    return values


def _most_likely(logits: Any, _labels: Any) -> Any:
    return torch.argmax(logits, dim=-1)


def _most_likely_and_labels(logits: Any, labels: Any) -> Any:
    return torch.argmax(logits, dim=-1), labels


PREPROCESS = {"none": None, "argmax": _most_likely, "argmax and labels": _most_likely_and_labels}


def _count(prediction: Any) -> dict[str, float]:
    """Compute a metric that does not reduce logits to characters."""
    kept = prediction.predictions
    batches = kept if isinstance(kept, list) else [kept]
    return {"examples": float(sum(len(batch[0] if isinstance(batch, tuple) else batch) for batch in batches))}


def train(configuration: Configuration, workload: Workload, prepared: Prepared, run: Run, opened: Meter | None) -> None:
    """Train as the configuration says and fill `run`; an error is kept as facts, and nothing of it stays alive."""
    wer = wav2vec2.ComputeMetrics()
    trainer: Any = None
    with tempfile.TemporaryDirectory(prefix="repro-") as directory:
        try:
            trainer = ctc_trainer.trainer_for(
                prepared.model,
                directory,
                prepared.train_set,
                prepared.small_set,
                arguments(configuration, workload),
                compute_metrics={"wer": wer, "count": _count, "none": None}[str(configuration["metrics"])],
                preprocess_logits_for_metrics=PREPROCESS[str(configuration["preprocess"])],
            )
            callback = EvaluatingCallback(trainer, _setting(configuration, prepared.evaluated))
            run.calls = callback.calls
            with contextlib.ExitStack() as watching:
                if opened is not None:
                    watching.enter_context(phases_of(trainer, opened))
                watching.enter_context(_looking(callback, wer, run))
                if configuration["callback"] != "off":
                    trainer.add_callback(callback)
                trainer.train()
        except Exception as error:
            run.end = "refused" if raised.is_refusal(error) else "raised"
            run.exception, run.raised_in = raised.as_facts(error), _telling_places(error)
        if trainer is not None:
            run.log, run.losses = ctc_trainer.rows(trainer), ctc_trainer.losses(trainer)
    run.moved = prepared.movement.moved()


def _setting(configuration: Configuration, evaluated: Any) -> Setting:
    call_batch = configuration["call_batch"]
    return Setting(
        event="on_step_end",
        when="always" if configuration["callback"] == "every step" else "should_evaluate",
        dataset=evaluated,
        prefix="train",
        control="returns the copy",
        guard=str(configuration["guard"]),
        arguments={} if call_batch == "unset" else {"per_device_eval_batch_size": int(call_batch)},
    )


def _telling_places(error: BaseException) -> list[str]:
    telling = ("training_step", "on_step_end", "evaluate", "evaluation_loop", "prediction_step")
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.name in telling]


class _GradientsAlive(TrainerCallback):  # type: ignore[misc]
    """Notes the bytes of gradients at the end of each step, before any callback that was added later."""

    def __init__(self, noted: list[int]) -> None:
        self.noted = noted

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002 - the event's own
        """Look, and change nothing."""
        alive = sum(p.grad.nbytes for p in more["model"].parameters() if p.grad is not None)
        if alive not in self.noted:
            self.noted.append(alive)


@contextlib.contextmanager
def _looking(callback: EvaluatingCallback, wer: wav2vec2.ComputeMetrics, run: Run) -> Iterator[None]:
    """Note what holds inside the callback's evaluations, and what gradients are alive when it is called."""
    trainer, inside = callback.trainer, run.inside
    inside |= {"training_mode": [], "grad_enabled": [], "batch_sizes": [], "frames": [], "gradient_bytes": []}

    def before_forward(module: torch.nn.Module, _: Any, inputs: Mapping[str, Any]) -> None:
        if not callback.busy:
            return
        sounds = inputs["input_values"]
        for name, value in (
            ("training_mode", module.training),
            ("grad_enabled", torch.is_grad_enabled()),
            ("batch_sizes", sounds.shape[0]),
            ("frames", wav2vec2.frames(sounds.shape[1])),
        ):
            if value not in inside[name]:
                inside[name].append(value)

    evaluate = trainer.evaluate

    def noting(*args: Any, **keywords: Any) -> Any:
        metrics = evaluate(*args, **keywords)
        if callback.busy:
            run.texts = wer.digest
        return metrics

    trainer.add_callback(_GradientsAlive(inside["gradient_bytes"]))
    trainer.evaluate = noting
    hook = trainer.model.register_forward_pre_hook(before_forward, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
        del trainer.evaluate
