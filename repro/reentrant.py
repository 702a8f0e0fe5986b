"""What the failures of reentrant checkpointing share: who enables it and in which mode, and what is advised against it.

Standard library only, like the vocabulary: catalogue files are made of these.
"""

from __future__ import annotations

from collections.abc import Callable

from repro.vocabulary import Claim, Configuration, Constraint, Factor, Facts, Mechanism, Source, Trial

ENABLED = Factor(
    "checkpointing",
    ("off", "method", "arguments"),
    "who enables gradient checkpointing",
    model_levels=("off", "method"),
)
MODE = Factor("use_reentrant", ("unset", "True", "False"), "`use_reentrant`, wherever checkpointing is enabled")
MODE_NEEDS_CHECKPOINTING = Constraint(
    "without checkpointing there is no mode to choose",
    lambda c: c["checkpointing"] != "off" or c["use_reentrant"] == "unset",
)

USE_FALSE = Claim("use-reentrant-false", "`use_reentrant=False`", "threads", change={"use_reentrant": "False"})
LEAVE_UNSET = Claim(
    "use-reentrant-unset", "leave `use_reentrant` to the default", "default", change={"use_reentrant": "unset"}
)
BY_METHOD = Claim(
    "enable-by-method",
    "call `gradient_checkpointing_enable` instead of setting the argument",
    "threads",
    change={"checkpointing": "method"},
)
SWITCHED_OFF = Claim(
    "checkpointing-off",
    "train without gradient checkpointing",
    "threads",
    change={"checkpointing": "off", "use_reentrant": "unset"},
)
UPGRADE = Claim("upgrade", "upgrade transformers to the newest release", "threads", pin={"transformers": "latest"})

CENSUS = Source("census", "found by comparing every model's gradients with and without checkpointing")
EVERYWHERE = Source(
    "everywhere", "where every model moved onto it", "https://github.com/huggingface/transformers/pull/38913"
)
DEFAULT = Source("default", "where the default mode changed", "https://github.com/huggingface/transformers/pull/43203")


def is_reentrant(configuration: Configuration, mechanism: Mechanism) -> bool:
    """Tell whether a configuration checkpoints reentrantly, by argument or by this release's default."""
    mode = configuration["use_reentrant"]
    return configuration["checkpointing"] != "off" and (
        mode == "True" or (mode == "unset" and mechanism["default_mode"] == "reentrant")
    )


def observer_of(family: str) -> Callable[[Trial], Facts]:
    """Return what runs a trial of a family of speech encoders, at either scope."""

    def observe(trial: Trial) -> Facts:
        from repro.observe import speech_model, speech_trainer

        run = speech_model.observe if trial.scope == "model" else speech_trainer.observe
        return run(family, trial.configuration)

    return observe


def script_of(family: str) -> Callable[[Configuration], str]:
    """Return what writes the part of a standalone script that trains a family of speech encoders."""

    def script(configuration: Configuration) -> str:
        from repro.script import encoders

        return encoders.script(family, configuration)

    return script


def probe_of(family: str) -> Callable[[], Mechanism]:
    """Return what looks at how a release checkpoints a family of speech encoders."""

    def probe() -> Mechanism:
        from repro.observe import speech_model

        return speech_model.probe(family)

    return probe
