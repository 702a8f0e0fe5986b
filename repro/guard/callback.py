"""`ReproGuard`: the same look as `repro.check`, as a callback, at the moment when training begins."""

from __future__ import annotations

import warnings
from typing import Any

from transformers import TrainerCallback

from repro.guard.check import KnownFailureWarning, look
from repro.guard.live import Live


class ReproGuard(TrainerCallback):  # type: ignore[misc]
    """Warns, before the first step, of each known failure that the run is going to hit; never stops it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Look at the model and the arguments as they are when training begins."""
        processing = given.get("processing_class") or given.get("tokenizer")
        for alarm in look(Live(given["model"], args, (), processing)):
            warnings.warn(str(alarm), KnownFailureWarning, stacklevel=2)
