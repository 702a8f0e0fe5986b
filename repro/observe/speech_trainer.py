"""Trials of a whole `Trainer.train()` of a speech encoder with its head: two optimizer steps, as scripts do."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from typing import Any

import torch

from repro.observe import drift, fresh, gradients, raised
from repro.observe.speech_model import noting_the_warning, told_apart, twin_of
from repro.observe.speech_setup import REENTRANT, model_for, settings_proof
from repro.observe.spy import watching
from repro.speech import encoders
from repro.vocabulary import Configuration, Facts

STEPS = 2
BATCH = 2


@dataclass
class Run:
    """What was seen of one training run. Gradients are those of the first optimizer step, after clipping."""

    losses: list[float] = field(default_factory=list)
    first_gradients: gradients.Gradients = field(default_factory=dict)
    optimizer_steps: int = 0
    moved: bool | None = None


_TWINS: gradients.Twins[Run] = gradients.Twins()


def observe(family: str, configuration: Configuration) -> Facts:
    """Run one configuration and return its facts: end, losses, first gradients against the twin, proofs.

    `moved` tells whether every parameter with a non-zero first gradient changed.
    """
    fresh.start()
    facts: dict[str, Any] = {"end": "completed"}
    run, model = Run(), None
    with watching() as seen, noting_the_warning(facts):
        try:
            model = model_for(family, configuration)
            train(family, model, configuration, run)
        except raised.UnobservableError:
            raise
        except Exception as error:
            facts.update(end="refused" if raised.is_refusal(error) else "raised", exception=raised.as_facts(error))
    facts["proofs"] = {**seen.as_facts(), **(settings_proof(model) if model is not None else {})}
    facts["optimizer_steps"], facts["losses"] = run.optimizer_steps, run.losses
    if facts["end"] != "completed":
        return facts
    twin_configuration = twin_of(configuration)
    twin = _TWINS.get((family, twin_configuration), lambda: _run_twin(family, twin_configuration))
    facts["twin_losses"] = twin.losses
    facts["loss_finite"] = bool(run.losses) and all(map(math.isfinite, run.losses))
    facts["moved"] = run.moved
    facts["gradients"] = gradients.compare(run.first_gradients, twin.first_gradients, "fp32")
    return facts


def _run_twin(family: str, configuration: Configuration) -> Run:
    fresh.start()
    run = Run()
    train(family, model_for(family, configuration), configuration, run)
    return run


def arguments_for(configuration: Configuration, directory: str) -> Any:
    """Return the `TrainingArguments` that a script with this configuration would make."""
    from transformers import TrainingArguments

    values: dict[str, Any] = {
        "output_dir": directory,
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "seed": 0,
        "use_cpu": not torch.cuda.is_available(),
        "label_names": ["labels"],
    }
    if configuration["checkpointing"] == "arguments":
        values["gradient_checkpointing"] = True
        if configuration["use_reentrant"] != "unset":
            use_reentrant = REENTRANT[str(configuration["use_reentrant"])]
            values["gradient_checkpointing_kwargs"] = {"use_reentrant": use_reentrant}
    return TrainingArguments(**drift.spelled(TrainingArguments, **values))


def train(family: str, model: Any, configuration: Configuration, run: Run) -> None:
    """Train as the configuration says, and fill `run` while it goes, so that an error leaves what was seen before."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from transformers import PrinterCallback, Trainer

    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def before_step(*_: Any) -> None:
        if not run.optimizer_steps:
            run.first_gradients = gradients.copied(told_apart(model))
        run.optimizer_steps += 1

    with tempfile.TemporaryDirectory(prefix="repro-") as directory:
        trainer = Trainer(
            model=model,
            args=arguments_for(configuration, directory),
            train_dataset=encoders.prepared(family, STEPS * BATCH),
            data_collator=encoders.collate,
        )
        # It would only be noise in a pipe: every trial is reported once, by the test that runs it.
        trainer.remove_callback(PrinterCallback)
        hook = register_optimizer_step_pre_hook(before_step)
        try:
            trainer.train()
        finally:
            hook.remove()
            run.losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    after = dict(model.named_parameters())
    run.moved = all(
        not torch.equal(before[name], after[name].detach())
        for name, grad in run.first_gradients.items()
        if grad is not None and bool(grad.abs().max() > 0)
    )
