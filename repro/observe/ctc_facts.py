"""What the facts of a metered run say of the callback that evaluates: for symptoms and claims. Imports no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from repro.vocabulary import Facts


def differences(facts: Facts) -> tuple[list[str], list[str]]:
    """Compare what the callback's evaluation gave with the twin's: metrics that are gone, and those that changed.

    Losses may differ by rounding, as batches of another size are summed in another order. A rate that is the same by
    chance is told by the transcriptions.
    """
    mine, twin = facts.get("metrics") or {}, facts.get("twin_metrics") or {}
    gone = [name for name in twin if name not in mine]
    both = [name for name in twin if name in mine]
    changed = [name for name in both if not math.isclose(mine[name], twin[name], rel_tol=1e-4)]
    if "train_wer" in both and not facts["transcriptions_equal"]:
        changed.append("transcriptions")
    return gone, changed


def in_the_callback(facts: Facts) -> bool:
    """Tell whether the run ended inside an `evaluate` that `on_step_end` called."""
    places: list[str] = facts.get("raised_in") or []
    return "on_step_end" in places and "evaluate" in places[places.index("on_step_end") :]


def never_evaluated(facts: Facts) -> bool:
    """Tell whether a callback that is there to evaluate never did."""
    return facts["configured_to_evaluate"] and not facts["callback_evaluations"]


def metric_is_gone(facts: Facts) -> bool:
    """Tell whether the callback's evaluation lacks a metric that the twin's has."""
    return bool(facts["callback_evaluations"]) and bool(differences(facts)[0])


def metric_changed(facts: Facts) -> bool:
    """Tell whether the callback's evaluation gave another value than the twin's."""
    return bool(facts["callback_evaluations"]) and bool(differences(facts)[1])


def _inside(facts: Facts, what: str) -> list[Any] | None:
    """Return what was seen inside the callback's evaluations, or None when there were none."""
    return (facts.get("inside_evaluation") or {}).get(what) or None


def trains_or_keeps_gradients(facts: Sequence[Facts]) -> bool | None:
    """Tell whether any batch of the evaluation ran in training mode or with gradients on; None if none was seen."""
    training, gradients = _inside(facts[0], "training_mode"), _inside(facts[0], "grad_enabled")
    return None if training is None or gradients is None else any(training) or any(gradients)


def uses_training_batch(facts: Sequence[Facts]) -> bool | None:
    """Tell whether the evaluation's largest batch has as many examples as one of training; None if none was seen."""
    sizes = _inside(facts[0], "batch_sizes")
    return None if sizes is None else max(sizes) == facts[0]["train_batch"]


def gradients_are_alive(facts: Sequence[Facts]) -> bool | None:
    """Tell whether any gradient takes memory when the callback is called; None if it was not called."""
    alive = _inside(facts[0], "gradient_bytes")
    return None if alive is None else max(alive) > 0


def larger_is_lower(facts: Sequence[Facts]) -> bool | None:
    """Tell whether each of these runs has a lower peak than the one before; None if a peak is missing."""
    peaks = [int(each["peak_bytes"]) for each in facts if "peak_bytes" in each]
    if len(peaks) < len(facts):
        return None
    return all(later < earlier for earlier, later in itertools.pairwise(peaks))


def metric_stays(facts: Sequence[Facts]) -> bool | None:
    """Tell whether the evaluation gave the twin's metrics; None if it gave none."""
    if not facts[0].get("metrics"):
        return None
    return differences(facts[0]) == ([], [])
