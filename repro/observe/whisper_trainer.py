"""Trials of a whole `Seq2SeqTrainer.train()`: two optimizer steps, evaluation, generation, as scripts do."""

from __future__ import annotations

import functools
import math
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch

from repro.observe import drift, fresh, gradients, raised
from repro.observe.spy import watching
from repro.observe.whisper_model import twin_of
from repro.observe.whisper_setup import REENTRANT, model_for, settings_proof
from repro.speech import whisper
from repro.vocabulary import Configuration, Facts

STEPS = 2
TRAIN_BATCH, EVAL_BATCH = 2, 2


@dataclass
class Run:
    """What was seen of one training run. Gradients are those of the first optimizer step, after clipping."""

    losses: list[float] = field(default_factory=list)
    first_gradients: gradients.Gradients = field(default_factory=dict)
    optimizer_steps: int = 0
    evaluations: int = 0
    generations: int = 0
    moved: bool | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    predicted: dict[str, Any] = field(default_factory=dict)


_TWINS: gradients.Twins[Run] = gradients.Twins()


def observe(configuration: Configuration) -> Facts:
    """Run one configuration and return its facts.

    `evaluations` and `generations` count what began before the run ended, by an error or not. `moved` tells whether
    every parameter with a non-zero first gradient changed.
    """
    fresh.start()
    facts: dict[str, Any] = {"end": "completed"}
    run, model = Run(), None
    with watching() as seen, tempfile.TemporaryDirectory(prefix="repro-") as directory:
        try:
            model = model_for(configuration)
            train(model, configuration, directory, run)
        except raised.UnobservableError:
            raise
        except Exception as error:
            facts.update(end="refused" if raised.is_refusal(error) else "raised", exception=raised.as_facts(error))
    facts["proofs"] = {**seen.as_facts(), **(settings_proof(model) if model is not None else {})}
    facts["optimizer_steps"] = run.optimizer_steps
    facts["evaluations"], facts["generations"] = run.evaluations, run.generations
    facts["losses"], facts["metrics"], facts["predicted"] = run.losses, run.metrics, run.predicted
    if facts["end"] != "completed":
        return facts
    twin_configuration = _plain_twin(configuration)
    twin = _TWINS.get(twin_configuration, functools.partial(_run_twin, twin_configuration))
    facts["twin_losses"] = twin.losses
    facts["loss_finite"] = bool(run.losses) and all(map(math.isfinite, run.losses))
    facts["moved"] = run.moved
    facts["gradients"] = gradients.compare(run.first_gradients, twin.first_gradients, str(configuration["precision"]))
    return facts


def _plain_twin(configuration: Configuration) -> Configuration:
    """Return the twin: no checkpointing, and none of the settings that only look on and cannot change a gradient."""
    return twin_of(configuration).but(
        evaluation="no",
        predict_with_generate="no",
        tokenizer="not given",
        best_model="no",
        retain_graph="no",
        stray_variable="absent",
        predict_after="no",
    )


def _run_twin(configuration: Configuration) -> Run:
    fresh.start()
    run = Run()
    with tempfile.TemporaryDirectory(prefix="repro-") as directory:
        train(model_for(configuration), configuration, directory, run)
    return run


def arguments_for(configuration: Configuration, directory: str) -> Any:
    """Return the `Seq2SeqTrainingArguments` that a script with this configuration would make.

    Raises RefusedError when this release lacks an argument that the configuration sets.
    """
    from transformers import Seq2SeqTrainingArguments

    values: dict[str, Any] = {
        "output_dir": directory,
        "per_device_train_batch_size": TRAIN_BATCH,
        "per_device_eval_batch_size": EVAL_BATCH,
        "gradient_accumulation_steps": configuration["accumulation"],
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "seed": 0,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": configuration["precision"] == "bf16",
        "fp16": configuration["precision"] == "fp16",
    }
    if configuration["checkpointing"] in ("arguments", "both"):
        values["gradient_checkpointing"] = True
        if configuration["use_reentrant"] != "unset":
            use_reentrant = REENTRANT[str(configuration["use_reentrant"])]
            values["gradient_checkpointing_kwargs"] = {"use_reentrant": use_reentrant}
    if configuration["evaluation"] == "steps":
        values |= {"eval_strategy": "steps", "eval_steps": 1}
    if configuration["predict_with_generate"] == "yes":
        values |= {"predict_with_generate": True, "generation_max_length": 8}
    if configuration["lora"] != "off":
        # A wrapped model hides which of its inputs are labels, and without them there is no metric.
        values["label_names"] = ["labels"]
    if configuration["best_model"] == "yes":
        values |= {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
        values |= {"metric_for_best_model": "wer", "greater_is_better": False}
    return Seq2SeqTrainingArguments(**drift.spelled(Seq2SeqTrainingArguments, **values))


def trainer_for(model: Any, configuration: Configuration, directory: str) -> Any:
    """Return the `Seq2SeqTrainer` that a script with this configuration would make."""
    from transformers import Seq2SeqTrainer

    extra: dict[str, Any] = {}
    if configuration["tokenizer"] == "given":
        extra[drift.tokenizer_argument(Seq2SeqTrainer)] = whisper.feature_extractor()
    rows = whisper.prepared(STEPS * TRAIN_BATCH * int(configuration["accumulation"]))
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments_for(configuration, directory),
        train_dataset=rows,
        eval_dataset=whisper.prepared(4, seed=1),
        data_collator=whisper.Collator(model.config.decoder_start_token_id),
        compute_metrics=whisper.compute_metrics(),
        **extra,
    )
    # Both would only be noise in a pipe: every trial is reported once, by the test that runs it.
    from transformers import PrinterCallback, ProgressCallback

    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def train(model: Any, configuration: Configuration, directory: str, run: Run) -> None:
    """Train as the configuration says, and fill `run` while it goes, so that an error leaves what was seen before."""
    if configuration["stray_variable"] == "set":
        model_gradient_checkpointing = True  # noqa: F841 - the line of the report, word for word
        globals()["model_gradient_checkpointing"] = True
    trainer = trainer_for(model, configuration, directory)
    if configuration["retain_graph"] == "yes":
        trainer.accelerator.backward = functools.partial(trainer.accelerator.backward, retain_graph=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    try:
        with _counting(trainer, model, run):
            trainer.train()
            if configuration["predict_after"] != "no":
                _predict(trainer, configuration, run)
    finally:
        globals().pop("model_gradient_checkpointing", None)
        run.losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        rows = [row for row in trainer.state.log_history if "eval_loss" in row]
        run.metrics = {
            key: value for row in rows[-1:] for key, value in row.items() if key in ("eval_loss", "eval_wer")
        }
    after = dict(model.named_parameters())
    run.moved = all(
        not torch.equal(before[name], after[name].detach())
        for name, grad in run.first_gradients.items()
        if grad is not None and bool(grad.abs().max() > 0)
    )


def _predict(trainer: Any, configuration: Configuration, run: Run) -> None:
    """Call `predict` after training, plainly or with the argument that an answer puts there, and note what it gave."""
    extra = {"predict_with_generate": True} if configuration["predict_after"] == "with argument" else {}
    generations = run.generations
    output = trainer.predict(test_dataset=trainer.eval_dataset, **extra)
    run.predicted = {
        "metrics": {name: float(value) for name, value in output.metrics.items() if name.endswith(("wer", "loss"))},
        "generated": run.generations > generations,
        "dimensions": getattr(output.predictions, "ndim", None),
    }


class _counting:  # noqa: N801 - reads as the verb it is, in `with`
    """Counts evaluations, generations and optimizer steps, and copies the first gradients, while a trainer runs."""

    def __init__(self, trainer: Any, model: Any, run: Run) -> None:
        self.trainer, self.model, self.run = trainer, model, run

    def __enter__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        run, inner = self.run, self.model
        evaluate, generate = self.trainer.evaluate, inner.generate

        def counted_evaluate(*args: Any, **keywords: Any) -> Any:
            run.evaluations += 1
            return evaluate(*args, **keywords)

        def counted_generate(*args: Any, **keywords: Any) -> Any:
            run.generations += 1
            return generate(*args, **keywords)

        def before_step(*_: Any) -> None:
            if not run.optimizer_steps:
                run.first_gradients = gradients.copied(gradients.of(inner))
            run.optimizer_steps += 1

        self.trainer.evaluate, inner.generate = counted_evaluate, counted_generate
        self.hook = register_optimizer_step_pre_hook(before_step)

    def __exit__(self, *_: object) -> None:
        self.hook.remove()
        del self.trainer.evaluate
        del self.model.generate
