"""A `CTCTrainer` as people write it, and the run around it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

from repro.observe import drift
from repro.speech import wav2vec2

LEARNING_RATE = 1e-3
TIMES = ("runtime", "samples_per_second", "steps_per_second", "preparation_time", "compilation_time")
"""Ends of the names of metrics that tell time, and are never the same twice."""


class CTCTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that asks the model for its CTC loss itself."""

    def compute_loss(self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, **_: Any) -> Any:
        """Return the loss, and with `return_outputs` what the model returned."""
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def trainer_for(
    model: Any, directory: str, train_set: Any, eval_set: Any, arguments: Mapping[str, Any], **extra: Any
) -> CTCTrainer:
    """Return the trainer that a script would make. `arguments` and `extra` go to its arguments and to itself.

    Raises RefusedError for an argument that this release lacks.
    """
    values: dict[str, Any] = {
        "output_dir": directory,
        "learning_rate": LEARNING_RATE,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "seed": 0,
        "use_cpu": not torch.cuda.is_available(),
        **arguments,
    }
    trainer = CTCTrainer(
        model=model,
        args=TrainingArguments(**drift.spelled(TrainingArguments, **values)),
        train_dataset=train_set,
        eval_dataset=eval_set,
        data_collator=wav2vec2.Collator(),
        **extra,
    )
    # Both would only be noise in a pipe: every trial is reported once, by the test that runs it.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def rows(trainer: Any) -> list[dict[str, Any]]:
    """Return the trainer's log without what tells time, and without its closing summary."""
    return [
        {name: value for name, value in row.items() if not name.endswith(TIMES)}
        for row in trainer.state.log_history
        if "total_flos" not in row
    ]


def losses(trainer: Any) -> list[float]:
    """Return the training losses that were logged."""
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def all_finite(values: list[float]) -> bool:
    """Tell whether there are values, and each is finite."""
    return bool(values) and all(map(math.isfinite, values))


class Movement:
    """Tells whether training moved the parameters of a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def moved(self) -> bool:
        """Tell whether any parameter is not what it was."""
        after = dict(self.model.named_parameters())
        return any(not torch.equal(before, after[name].detach().cpu()) for name, before in self.before.items())
