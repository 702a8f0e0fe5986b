"""Which single setting would make a run fit: each one is forecast, none is assumed to help. No torch of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from repro.forecast.timeline import largest

if TYPE_CHECKING:
    from repro.forecast.result import Forecast
    from repro.forecast.setting import Setting
    from repro.forecast.work import Session

Phase = Literal["training", "evaluation"]


@dataclass(frozen=True)
class Change:
    """One setting changed, and what the phase it is meant for then needs. `error` says why it could not be forecast."""

    phase: Phase
    says: str
    changes: dict[str, Any]
    peak_bytes: int | None
    fits: bool
    error: str = ""


@dataclass(frozen=True)
class Largest:
    """The largest batches that fit, each with every other setting as it is; 0 when not even one example does."""

    training: int
    evaluation: int


def largest_batches(session: Session, setting: Setting, capacity: int) -> Largest:
    """Find the largest batches that fit, from two runs. Raises NotForecastableError."""
    explicit = setting.but(eval_batch=setting.evaluation_batch)
    session.prepare_batches(explicit)

    def trains(batch: int) -> bool:
        return session.forecast(explicit.but(batch=batch)).training.peak_bytes <= capacity

    def evaluates(batch: int) -> bool:
        return session.forecast(explicit.but(eval_batch=batch)).evaluation.peak_bytes <= capacity

    return Largest(largest(trains, most=1024), largest(evaluates, most=min(1024, setting.examples)))


def changes(session: Session, forecast: Forecast, capacity: int, batches: Largest) -> tuple[Change, ...]:
    """Forecast every single change for each phase that does not fit; those that make it fit come first.

    Nothing is returned for a run that fits.
    """
    from repro.forecast.work import NotForecastableError

    found = []
    setting = forecast.setting.but(eval_batch=forecast.setting.evaluation_batch)
    for phase, says, changed in _candidates(forecast, capacity, batches):
        try:
            changed_forecast = session.forecast(setting.but(**changed))
        except NotForecastableError as error:
            found.append(Change(phase, says, changed, None, False, str(error)))
            continue
        needed = getattr(changed_forecast, phase).peak_bytes
        found.append(Change(phase, says, changed, needed, needed <= capacity))
    return tuple(sorted(found, key=lambda change: (change.phase != "training", not change.fits)))


def _candidates(forecast: Forecast, capacity: int, batches: Largest) -> Iterator[tuple[Phase, str, dict[str, Any]]]:
    setting = forecast.setting
    if forecast.training.peak_bytes > capacity:
        if batches.training:
            yield "training", f"per_device_train_batch_size={batches.training}", {"batch": batches.training}
        if setting.checkpointing == "off":
            kwargs = 'gradient_checkpointing_kwargs={"use_reentrant": False}'
            yield "training", f"gradient_checkpointing=True, {kwargs}", {"checkpointing": "on"}
        if setting.precision == "fp32":
            yield "training", "bf16=True (or fp16=True)", {"precision": "bf16"}
        if setting.attention == "eager":
            yield "training", 'attn_implementation="sdpa"', {"attention": "sdpa"}
        if setting.optimizer == "adamw_torch":
            yield "training", 'optim="adamw_torch_fused"', {"optimizer": "adamw_torch_fused"}
        if not setting.freeze_encoder:
            yield "training", "freeze the encoder (changes what is trained)", {"freeze_encoder": True}
    if forecast.evaluation.peak_bytes > capacity:
        if batches.evaluation:
            yield "evaluation", f"per_device_eval_batch_size={batches.evaluation}", {"eval_batch": batches.evaluation}
        if setting.keep in ("outputs", "argmax") and not setting.eval_accumulation:
            yield "evaluation", "eval_accumulation_steps=1", {"eval_accumulation": 1}
        if setting.keep == "outputs":
            yield "evaluation", "preprocess_logits_for_metrics that returns the argmax", {"keep": "argmax"}
        if setting.keep in ("outputs", "argmax"):
            yield "evaluation", "batch_eval_metrics=True", {"keep": "batch"}
            yield "evaluation", "prediction_loss_only=True (no other metric)", {"keep": "nothing"}
