"""Training arguments, as a person has them in a file, read as levels of a failure's factors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.vocabulary import Configuration, Factor, Failure, Level


@dataclass(frozen=True)
class Reading:
    """What a set of arguments comes down to. `ignored` are arguments that no factor stands for, with the reason.

    `rounded` are arguments whose value is not a level itself, with the level that was taken.
    """

    configuration: Configuration
    taken: Mapping[str, str]
    rounded: Mapping[str, str]
    ignored: Mapping[str, str]


RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}
CHECKPOINTING, MODE = "checkpointing", "use_reentrant"


def read(failure: Failure, arguments: Mapping[str, Any], device: str = "cpu") -> Reading:
    """Read training arguments as a configuration of a failure: factors that nothing is said about keep their default.

    Arguments that mean nothing to the failure, or that the device cannot run, are named with the reason; the trials
    set sizes, steps and paths themselves.
    """
    levels: dict[str, Level] = {}
    taken: dict[str, str] = {}
    rounded: dict[str, str] = {}
    ignored: dict[str, str] = {}
    for name, value in arguments.items():
        factor = _factor(failure, RENAMED.get(name, name))
        if factor is None:
            ignored[name] = f"not a factor of {failure.id}"
            continue
        level = next((level for level in _meanings(factor, name, value) if level in factor.levels), None)
        if level is None and (level := _nearest(value, factor.levels)) is not None:
            rounded[name] = f"taken as {level}"
        if level is None:
            ignored[name] = f"{value!r} is not among the levels of {factor.name}: {', '.join(map(str, factor.levels))}"
        elif level not in factor.levels_at(failure.reported_scope, device):
            ignored[name] = f"{level} needs a CUDA device"
        elif factor.name in levels and level == factor.default:
            taken[name] = f"{factor.name}={levels[factor.name]}, by another argument"
        else:
            levels[factor.name] = level
            taken[name] = f"{factor.name}={level}"
    if levels.get(CHECKPOINTING, "off") == "off" and levels.pop(MODE, "unset") != "unset":
        for name in [name for name, level in taken.items() if level.startswith(f"{MODE}=")]:
            del taken[name]
            ignored[name] = "it changes nothing without gradient checkpointing"
    return Reading(failure.configuration(**levels), taken, rounded, ignored)


def _factor(failure: Failure, argument: str) -> Factor | None:
    """Return the factor that stands for an argument: its declaration begins with the argument's name."""
    if argument == "gradient_checkpointing_kwargs":
        return next((factor for factor in failure.factors if factor.name == MODE), None)
    named = (f for f in failure.factors if argument in re.findall(r"`(\w+)`", f.says.split(": ")[0].split(" and ")[0]))
    switch = next((factor for factor in failure.factors if factor.name == CHECKPOINTING), None)
    return next(named, switch if argument == "gradient_checkpointing" else None)


def _meanings(factor: Factor, argument: str, value: Any) -> tuple[Level, ...]:
    """Return the levels that a value may be, as failures name them: the first that the factor has is meant."""
    if factor.name == MODE:
        mode = value.get("use_reentrant") if isinstance(value, Mapping) else None
        return ("unset",) if mode is None else (str(bool(mode)),)
    if isinstance(value, bool):
        # A switch between several levels is called by the one that it turns on, as `bf16` is.
        return ("arguments", "yes", argument) if value else ("off", "no", factor.default)
    if value is None:
        return (factor.default,)
    # An enum that was written by `str` reads `IntervalStrategy.STEPS`.
    return (value,) if isinstance(value, int) else (str(value).rsplit(".", 1)[-1].lower(),)


def _nearest(value: Any, allowed: Sequence[Level]) -> int | None:
    """Return the level nearest to a number, where there are numbers among the levels."""
    numbers = [level for level in allowed if isinstance(level, int)]
    if isinstance(value, bool) or not isinstance(value, int) or not numbers:
        return None
    wanted = value
    return min(numbers, key=lambda number: abs(number - wanted))
