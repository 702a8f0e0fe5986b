"""Names the phases of a Trainer's run for a meter. Duck typing only: transformers is not imported."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from repro.memory.meter import Meter

TRAIN_STEP, EVALUATION_BATCH, GATHER = "train step", "evaluation batch", "gather"
_METHODS = {"training_step": TRAIN_STEP, "prediction_step": EVALUATION_BATCH, "evaluation_loop": GATHER}


@contextmanager
def phases_of(trainer: Any, meter: Meter) -> Iterator[None]:
    """Name, while open, what `trainer` does.

    `train step` is forward and backward (not the optimizer's step); `evaluation batch` the forward of one batch;
    `gather` is an evaluation as a whole, within which whatever is not a batch's forward keeps and joins its results.
    """
    with ExitStack() as undo:
        for method, phase in _METHODS.items():
            undo.callback(_wrap(trainer, method, phase, meter))
        yield


def _wrap(trainer: Any, method: str, phase: str, meter: Meter) -> Any:
    plain = getattr(trainer, method)

    @functools.wraps(plain)
    def named(*args: Any, **kwargs: Any) -> Any:
        with meter.phase(phase):
            return plain(*args, **kwargs)

    setattr(trainer, method, named)
    # Drop the instance's attribute again unless it had one of its own before.
    return functools.partial(delattr, trainer, method)
