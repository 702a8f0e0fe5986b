"""Will it fit? The memory that a training run is going to need, predicted without weights, data or a GPU.

    import repro.forecast

    forecast = repro.forecast.of(trainer)                       # a live Trainer, nothing of it is changed
    forecast = repro.forecast.named("whisper-small", batch=16)  # a published size, by name
    forecast.training.peak_bytes, forecast.evaluation.peak_bytes, forecast.fits(card_bytes)

One training step and one evaluation batch really run, on fake tensors (shapes without data), while every storage that
is alive is counted (`work`, `book`). What evaluation keeps of a whole set follows from that batch (`evaluation`). The
arithmetic on what was counted needs no torch (`timeline`, `evaluation`, `advice`); nothing here imports torch before it
is asked to forecast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.forecast.result import Forecast
    from repro.forecast.work import Session, Tell


def named(model: str, *, tell: Tell | None = None, **setting: Any) -> Forecast:
    """Forecast a published model. `setting` are fields of `repro.forecast.setting.Setting`.

    Raises LookupError for a model that is not known, ValueError for a setting that makes no sense, and
    `repro.forecast.work.NotForecastableError` when the model cannot run on fake tensors here.
    """
    from repro.forecast.setting import Setting

    return session_named(model, tell=tell).forecast(Setting(**setting))


def of(trainer: Any, *, tell: Tell | None = None, **setting: Any) -> Forecast:
    """Forecast a live Trainer with its own model, arguments, data and metrics; `setting` overrides what they say.

    Nothing of the trainer is changed: its model is copied without its numbers. A few examples are read from its data
    sets, and the longest of them stands for all. Raises what `named` raises.
    """
    from repro.forecast.trainer import session_of, setting_of

    return session_of(trainer, tell=tell).forecast(setting_of(trainer, **setting))


def session_named(model: str, *, tell: Tell | None = None) -> Session:
    """Return a session for a published model: one that forecasts many settings and remembers its runs."""
    from repro.forecast.architectures import find
    from repro.forecast.published import Published
    from repro.forecast.work import Session

    return Session(Published(find(model)), tell=tell)
