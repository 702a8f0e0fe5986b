"""Trials of a run's schedule: which logs and evaluations a callback that evaluates leaves of those that were due."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerCallback

from repro.observe import ctc_trainer, fresh, raised
from repro.observe.ctc_callback import EvaluatingCallback, Setting
from repro.observe.gradients import Twins
from repro.speech import wav2vec2
from repro.vocabulary import Configuration, Facts

BATCH, TRAIN_SIZE, EVAL_SIZE, EPOCHS = 2, 6, 2, 2
EVENT = {"every epoch": "on_epoch_end", "after an evaluation": "on_evaluate", "after a log": "on_log"}
WHEN = {"when should_evaluate": "should_evaluate", "when should_log": "should_log"}


@dataclass
class Run:
    """What was seen of one run: its log, when the callback evaluated, a digest of each batch that it trained on."""

    log: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    callback_evaluations: list[int] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    best_known: bool = False
    moved: bool | None = None


_TWINS: Twins[Run] = Twins()


def observe(configuration: Configuration) -> Facts:
    """Run one configuration and return its facts.

    `lost_evaluations` and `lost_logs` are the steps at which the twin without the callback has a row with `eval_loss`,
    or with `loss`, and this run has none; `changed` the steps at which both have one and a loss in it is another,
    though both trained on the same data so far. `reshuffled_at` is the first step that trained on other data than the
    twin's: an evaluation draws random numbers, and where the order of the data depends on them it is another order.
    `best_lost`: the twin knows its best checkpoint, and this run does not.
    """
    facts: dict[str, Any] = {"end": "completed"}
    run = Run()
    try:
        _train(configuration, run)
    except Exception as error:
        facts.update(end="refused" if raised.is_refusal(error) else "raised", exception=raised.as_facts(error))
    facts["callback_evaluations"], facts["losses"] = run.callback_evaluations, run.losses
    if facts["end"] != "completed":
        return facts
    plain = configuration.but(callback="off", control="returns nothing", dataset="training set", method="evaluate")
    twin = _TWINS.get(plain, lambda: _run_twin(plain))
    facts |= compare(run, twin)
    facts["twin_losses"] = twin.losses
    facts["loss_finite"] = ctc_trainer.all_finite(run.losses or twin.losses)
    facts["moved"] = run.moved
    return facts


def compare(run: Run, twin: Run) -> dict[str, Any]:
    """Compare a run's log with its twin's, as facts."""
    differs = [mine != other for mine, other in zip(run.batches, twin.batches, strict=True)]
    reshuffled = differs.index(True) + 1 if True in differs else None
    facts: dict[str, Any] = {"lost_evaluations": [], "lost_logs": [], "changed": [], "reshuffled_at": reshuffled}
    for loss, lost in (("eval_loss", "lost_evaluations"), ("loss", "lost_logs")):
        mine, others = _by_step(run.log, loss), _by_step(twin.log, loss)
        facts[lost] = [step for step in others if step not in mine]
        same_data = [step for step in others if step in mine and (reshuffled is None or step < reshuffled)]
        facts["changed"] += [[step, loss] for step in same_data if mine[step] != others[step]]
    facts["best_lost"] = twin.best_known and not run.best_known
    return facts


def _by_step(log: list[dict[str, Any]], loss: str) -> dict[int, float]:
    return {row["step"]: row[loss] for row in log if loss in row}


def _run_twin(configuration: Configuration) -> Run:
    run = Run()
    _train(configuration, run)
    return run


def _setting(configuration: Configuration, train_set: Any) -> Setting:
    callback = str(configuration["callback"])
    on_training_set = configuration["dataset"] == "training set"
    return Setting(
        event=EVENT.get(callback, "on_step_end"),
        when=WHEN.get(callback, "always"),
        dataset=train_set if on_training_set else None,
        prefix="train" if on_training_set else "eval",
        method=str(configuration["method"]),
        control=str(configuration["control"]),
    )


def _train(configuration: Configuration, run: Run) -> None:
    fresh.start()
    train_set, eval_set = wav2vec2.prepared(TRAIN_SIZE), wav2vec2.prepared(EVAL_SIZE, seed=1)
    strategy = str(configuration["strategy"])
    values: dict[str, Any] = {
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "num_train_epochs": EPOCHS,
        "logging_steps": int(configuration["logging_steps"]),
        "eval_strategy": strategy,
    }
    if strategy == "steps":
        values["eval_steps"] = int(configuration["eval_steps"])
    if configuration["best_model"] == "yes":
        values |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_strategy": strategy}
        values |= {"save_steps": int(configuration["eval_steps"]), "save_total_limit": 1}
    model = wav2vec2.build()
    movement = ctc_trainer.Movement(model)
    with tempfile.TemporaryDirectory(prefix="repro-") as directory:
        trainer = ctc_trainer.trainer_for(model, directory, train_set, eval_set, values)
        callback = EvaluatingCallback(trainer, _setting(configuration, train_set))
        if configuration["callback"] != "off":
            trainer.add_callback(callback)
        _note_batches(trainer, run.batches)
        try:
            trainer.train()
        finally:
            run.log, run.losses = ctc_trainer.rows(trainer), ctc_trainer.losses(trainer)
            run.callback_evaluations = callback.calls
    run.best_known = trainer.state.best_model_checkpoint is not None
    run.moved = movement.moved()


def _note_batches(trainer: Any, batches: list[str]) -> None:
    training_step = trainer.training_step

    def noting(model: Any, inputs: Any, *more: Any, **keywords: Any) -> Any:
        batches.append(hashlib.sha256(inputs["input_values"].cpu().numpy().tobytes()).hexdigest()[:12])
        return training_step(model, inputs, *more, **keywords)

    trainer.training_step = noting


def probe() -> dict[str, Any]:
    """Look at what calling `evaluate()` and `predict()` does to the control object that callbacks are passed.

    `cleared_by`: by method, the flags that were set before the call and are not after it.
    """
    return {"cleared_by": {method: _cleared_by(method) for method in ("evaluate", "predict")}}


FLAGS = ("should_evaluate", "should_log", "should_save")


class _Looking(TrainerCallback):  # type: ignore[misc]
    """Sets every flag at the first step, evaluates, and notes which flags are gone."""

    def __init__(self, trainer: Any, method: str) -> None:
        self.trainer, self.method = trainer, method
        self.cleared: list[str] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the event's signature
        """Look, and stop the run."""
        for flag in FLAGS:
            setattr(control, flag, True)
        getattr(self.trainer, self.method)(self.trainer.eval_dataset)
        self.cleared = [flag for flag in FLAGS if not getattr(control, flag)]
        for flag in FLAGS:
            setattr(control, flag, False)
        control.should_training_stop = True


def _cleared_by(method: str) -> list[str]:
    fresh.start()
    with tempfile.TemporaryDirectory(prefix="repro-") as directory:
        trainer = ctc_trainer.trainer_for(
            wav2vec2.build(),
            directory,
            wav2vec2.prepared(2),
            wav2vec2.prepared(2, seed=1),
            {"max_steps": 1, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2},
        )
        looking = _Looking(trainer, method)
        trainer.add_callback(looking)
        trainer.train()
    return looking.cleared
