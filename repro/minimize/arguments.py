"""Training arguments, as a person has them in a file, read as levels of a failure's factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.vocabulary import Configuration, Failure, Level


@dataclass(frozen=True)
class Reading:
    """What a set of arguments comes down to. `ignored` are arguments that no factor stands for, with the reason.

    `rounded` are arguments whose value is not a level itself, with the level that was taken.
    """

    configuration: Configuration
    taken: Mapping[str, str]
    rounded: Mapping[str, str]
    ignored: Mapping[str, str]


def _yes(value: Any) -> Level:
    return "yes" if value else "no"


def _strategy(value: Any) -> Level:
    # An enum that was written by `str` reads `IntervalStrategy.STEPS`.
    return str(value).rsplit(".", 1)[-1].lower()


def _reentrant(value: Any) -> Level:
    mode = value.get("use_reentrant") if isinstance(value, Mapping) else None
    return "unset" if mode is None else str(bool(mode))


KNOWN: Mapping[str, tuple[str, Callable[[Any], Level]]] = {
    "gradient_checkpointing": ("checkpointing", lambda value: "arguments" if value else "off"),
    "gradient_checkpointing_kwargs": ("use_reentrant", _reentrant),
    "eval_strategy": ("evaluation", _strategy),
    "predict_with_generate": ("predict_with_generate", _yes),
    "gradient_accumulation_steps": ("accumulation", int),
    "load_best_model_at_end": ("best_model", _yes),
}
"""By argument: the factor that stands for it, and how its value becomes a level."""

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
SWITCHES = {"fp16": "fp16", "bf16": "bf16"}
"""Arguments that stand for one level of the factor `precision`."""


def read(failure: Failure, arguments: Mapping[str, Any], device: str = "cpu") -> Reading:
    """Read training arguments as a configuration of a failure: factors that nothing is said about keep their default.

    Arguments that mean nothing to the failure, or that the device cannot run, are named with the reason; the trials
    set sizes, steps and paths themselves.
    """
    factors = {factor.name: factor for factor in failure.factors}
    levels: dict[str, Level] = {}
    taken: dict[str, str] = {}
    rounded: dict[str, str] = {}
    ignored: dict[str, str] = {}
    for name, value in arguments.items():
        factor, level = _meaning(RENAMED.get(name, name), value)
        if factor not in factors or level is None:
            ignored[name] = f"not a factor of {failure.id}"
            continue
        allowed = factors[factor].levels
        if level not in allowed and (near := _nearest(level, allowed)) is not None:
            level = near
            rounded[name] = f"taken as {near}"
        if level not in allowed:
            ignored[name] = f"{value!r} is not among the levels of {factor}: {', '.join(map(str, allowed))}"
        elif level not in factors[factor].levels_at(failure.reported_scope, device):
            ignored[name] = f"{level} needs a CUDA device"
        else:
            levels[factor] = level
            taken[name] = f"{factor}={level}"
    if levels.get("checkpointing", "off") == "off" and levels.pop("use_reentrant", "unset") != "unset":
        ignored["gradient_checkpointing_kwargs"] = "it changes nothing without gradient_checkpointing"
    return Reading(failure.configuration(**levels), taken, rounded, ignored)


def _nearest(level: Level, allowed: Sequence[Level]) -> int | None:
    """Return the level nearest to a number, where all levels are numbers."""
    numbers = [other for other in allowed if isinstance(other, int)]
    if not isinstance(level, int) or len(numbers) < len(allowed):
        return None
    wanted = level
    return min(numbers, key=lambda number: abs(number - wanted))


def _meaning(name: str, value: Any) -> tuple[str, Level | None]:
    """Return the factor that an argument stands for and its level there; None where it stands for none."""
    if name in SWITCHES:
        return "precision", SWITCHES[name] if value else None
    factor, level_of = KNOWN.get(name, (name, lambda _: None))
    try:
        return factor, level_of(value)
    except (TypeError, ValueError):
        return factor, None
