"""WavLM with reentrant checkpointing: a backward that waits for itself, and recomputes layers without an end."""

from __future__ import annotations

from repro.vocabulary import (
    TRAINS,
    Claim,
    Clue,
    Configuration,
    Constraint,
    Factor,
    Facts,
    Failure,
    Mechanism,
    Scope,
    Source,
    Symptom,
    Trial,
    Trigger,
)

ENDLESS = "backward without an end"
FAMILY = "wavlm"

FACTORS = (
    Factor(
        "checkpointing",
        ("off", "method", "arguments"),
        "who enables gradient checkpointing",
        model_levels=("off", "method"),
    ),
    Factor("use_reentrant", ("unset", "True", "False"), "`use_reentrant`, wherever checkpointing is enabled"),
    Factor("layers", (2, 1, 3), "layers of the encoder"),
    Factor("frozen", ("nothing", "convolutions", "relative positions"), "which parameters the script freezes"),
)


def predict(configuration: Configuration, _scope: Scope, mechanism: Mechanism) -> str | None:
    """Say what a configuration does, from how this release checkpoints WavLM.

    The first layer makes the relative positions, every other gets them and returns them as they came. What a checkpoint
    returns counts as made by it: the tensor that the second layer holds as a keyword then leads back to the second
    layer, whose backward runs it again, and so on. It is an output of a reentrant checkpoint, and so needs a gradient
    even where the relative positions are frozen.
    """
    if not mechanism["in_release"]:
        return None
    mode = configuration["use_reentrant"]
    reentrant = configuration["checkpointing"] != "off" and (
        mode == "True" or (mode == "unset" and mechanism["default_mode"] == "reentrant")
    )
    by_keyword = "position_bias" in mechanism["live_keywords"]
    return ENDLESS if reentrant and by_keyword and int(configuration["layers"]) >= 2 else TRAINS


def _observe(trial: Trial) -> Facts:
    from repro.observe import speech_model, speech_trainer

    observe = speech_model.observe if trial.scope == "model" else speech_trainer.observe
    return observe(FAMILY, trial.configuration)


def _probe() -> Mechanism:
    from repro.observe import speech_model

    return speech_model.probe(FAMILY)


REPORTED = Configuration({"checkpointing": "arguments", "use_reentrant": "True"})

CLAIMS = (
    Claim("use-reentrant-false", "`use_reentrant=False`", "threads", change={"use_reentrant": "False"}),
    Claim("use-reentrant-unset", "leave `use_reentrant` to the default", "default", change={"use_reentrant": "unset"}),
    Claim(
        "enable-by-method",
        "call `gradient_checkpointing_enable` instead of setting the argument",
        "threads",
        change={"checkpointing": "method"},
    ),
    Claim(
        "checkpointing-off",
        "train without gradient checkpointing",
        "threads",
        change={"checkpointing": "off", "use_reentrant": "unset"},
    ),
    Claim("freeze-feature-encoder", "`freeze_feature_encoder()`", "threads", change={"frozen": "convolutions"}),
    Claim(
        "freeze-relative-positions",
        "freeze the relative positions",
        "census",
        change={"frozen": "relative positions"},
    ),
    Claim("pin-4.52.4", "pin transformers 4.52.4", "everywhere", pin={"transformers": "4.52.4"}),
    Claim("upgrade", "upgrade transformers to the newest release", "threads", pin={"transformers": "latest"}),
)

FAILURE = Failure(
    id="wavlm-endless-backward",
    title="WavLM with reentrant checkpointing: the backward never ends",
    summary=(
        "Training WavLM with reentrant gradient checkpointing hangs in the first backward, eats memory, ends in "
        "`Resource temporarily unavailable` or takes the process with it. Each layer returns the position bias that it "
        "was given by keyword, and so becomes its own history: its backward recomputes it without an end."
    ),
    symptoms=(
        Symptom(
            ENDLESS,
            "checkpointed layers were run many times over in one backward, which was then stopped",
            exception="EndlessError",
            message=r"runs of checkpointed code",
        ),
        Symptom(
            "out of threads",
            "each nested backward takes a thread of its own, and the system has no more",
            exception="RuntimeError",
            message=r"Resource temporarily unavailable",
            clues=(
                Clue("WavLM is what is trained", 0.2, text=r"(?i)wavlm", lacking=-0.4),
                Clue("a reentrant checkpoint runs it", 0.2, frames=("torch/utils/checkpoint.py:backward",)),
            ),
        ),
    ),
    factors=FACTORS,
    constraints=(
        Constraint(
            "without checkpointing there is no mode to choose",
            lambda c: c["checkpointing"] != "off" or c["use_reentrant"] == "unset",
        ),
    ),
    reported=REPORTED,
    reported_scope="trainer",
    trigger=Trigger(
        "checkpointing is reentrant, by argument or by default; the release passes `position_bias` to the layers by "
        "keyword; and there are two layers or more",
        predict,
    ),
    observe=_observe,
    probe=_probe,
    claims=CLAIMS,
    sources=(
        Source("census", "found by comparing every model's gradients with and without checkpointing"),
        Source("threads", "advice in public threads", "https://github.com/huggingface/transformers/issues/28056"),
        Source(
            "everywhere", "where every model moved onto it", "https://github.com/huggingface/transformers/pull/38913"
        ),
        Source("default", "where the default mode changed", "https://github.com/huggingface/transformers/pull/43203"),
    ),
)
