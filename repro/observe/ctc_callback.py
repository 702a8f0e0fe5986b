"""The callbacks people write to evaluate their training set while they train, each part of them a setting."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback

EVENTS = ("on_step_end", "on_epoch_end", "on_evaluate", "on_log")


@dataclass
class Setting:
    """How the callback is written.

    `event`: the method it overrides. `when`: `always`, or only when a flag of the control is set (`should_evaluate`).
    `dataset`: what it evaluates, None for the trainer's own evaluation set. `prefix`: of the metrics' names. `method`:
    `evaluate`, or `predict`, which logs nothing. `control`: what becomes of the control object, see `hand_back`.
    `guard`: what is done around the evaluation, see `_guarded`. `arguments`: further ones for the call.
    """

    event: str = "on_step_end"
    when: str = "always"
    dataset: Any = None
    prefix: str = "eval"
    method: str = "evaluate"
    control: str = "returns nothing"
    guard: str = "none"
    arguments: dict[str, Any] = field(default_factory=dict)


def hand_back(setting: Setting, control: Any, before: Any) -> Any:
    """Return what the callback returns, given the control it was passed and a copy from before the evaluation."""
    if setting.control == "returns the copy":
        return before
    if setting.control == "returns it":
        return control
    if setting.control == "returns a late copy":
        return deepcopy(control)
    if setting.control == "restores the flags":
        vars(control).update(vars(before))
    return None


class EvaluatingCallback(TrainerCallback):  # type: ignore[misc]
    """Evaluates inside one event of a training run.

    `calls` are the steps at which it evaluated. Evaluating fires events of its own, of which the callback overlooks
    those that itself caused.
    """

    def __init__(self, trainer: Any, setting: Setting) -> None:
        self.trainer, self.setting = trainer, setting
        self.calls: list[int] = []
        self.busy = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002 - the event\'s signature
        """Evaluate here if the setting says so."""
        return self._event("on_step_end", state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002 - the event\'s signature
        """Evaluate here if the setting says so."""
        return self._event("on_epoch_end", state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002 - the event\'s signature
        """Evaluate here if the setting says so."""
        return self._event("on_evaluate", state, control)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002 - the event\'s signature
        """Evaluate here if the setting says so."""
        return self._event("on_log", state, control)

    def _event(self, event: str, state: Any, control: Any) -> Any:
        setting = self.setting
        if event != setting.event or self.busy or not self.trainer.is_in_train:
            return None
        if setting.when != "always" and not getattr(control, setting.when):
            return None
        self.busy = True
        self.calls.append(state.global_step)
        before = deepcopy(control)
        try:
            with _guarded(setting.guard, self.trainer):
                self._evaluate()
        finally:
            self.busy = False
        return hand_back(setting, control, before)

    def _evaluate(self) -> None:
        setting, trainer = self.setting, self.trainer
        if setting.method == "predict":
            dataset = setting.dataset if setting.dataset is not None else trainer.eval_dataset
            trainer.predict(dataset, metric_key_prefix=setting.prefix, **setting.arguments)
        else:
            trainer.evaluate(eval_dataset=setting.dataset, metric_key_prefix=setting.prefix, **setting.arguments)


@contextlib.contextmanager
def _guarded(guard: str, trainer: Any) -> Iterator[None]:
    """Do around the evaluation what advice says: `none`, or `eval`, `no_grad`, `zero_grad`, `gc` and `empty_cache`."""
    parts = guard.split("+")
    model = trainer.model
    was_training = model.training
    with torch.no_grad() if "no_grad" in parts else contextlib.nullcontext():
        if "eval" in parts:
            model.eval()
        if "zero_grad" in parts:
            trainer.optimizer.zero_grad(set_to_none=True)
        if "gc" in parts:
            gc.collect()
        yield
    if "eval" in parts:
        model.train(was_training)
    if "gc" in parts:
        gc.collect()
    if "empty_cache" in parts:
        torch.cuda.empty_cache()
