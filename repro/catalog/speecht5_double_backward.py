"""SpeechT5 with reentrant checkpointing: what all layers share is walked back once per layer."""

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

DOUBLE_BACKWARD = "double backward"
FAMILY = "speecht5"

FACTORS = (
    Factor(
        "checkpointing",
        ("off", "method", "arguments"),
        "who enables gradient checkpointing",
        model_levels=("off", "method"),
    ),
    Factor("use_reentrant", ("unset", "True", "False"), "`use_reentrant`, wherever checkpointing is enabled"),
    Factor("layers", (2, 1, 3), "layers of the encoder and of the decoder"),
    Factor("frozen", ("nothing", "convolutions", "relative positions"), "which parameters the script freezes"),
)


def predict(configuration: Configuration, _scope: Scope, mechanism: Mechanism) -> str | None:
    """Say what a configuration does, from how this release checkpoints SpeechT5.

    A reentrant layer's backward walks whatever graph its keywords still have. The encoder's relative positions are
    looked up once, for all of its layers: the second layer finds that graph freed. Frozen, they have none. The same
    holds for the encoder's output in the decoder's layers, where a release passes that by keyword, too.
    """
    if not mechanism["in_release"]:
        return None
    mode = configuration["use_reentrant"]
    reentrant = configuration["checkpointing"] != "off" and (
        mode == "True" or (mode == "unset" and mechanism["default_mode"] == "reentrant")
    )
    shared = set(mechanism["live_keywords"])
    if configuration["frozen"] == "relative positions":
        shared.discard("position_bias")
    shared &= {"position_bias", "encoder_hidden_states"}
    return DOUBLE_BACKWARD if reentrant and shared and int(configuration["layers"]) >= 2 else TRAINS


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
        "freeze the relative positions, which no layer then walks back to",
        "census",
        change={"frozen": "relative positions"},
    ),
    Claim("pin-4.52.4", "pin transformers 4.52.4", "everywhere", pin={"transformers": "4.52.4"}),
    Claim("upgrade", "upgrade transformers to the newest release", "threads", pin={"transformers": "latest"}),
)

FAILURE = Failure(
    id="speecht5-double-backward",
    title="SpeechT5 with reentrant checkpointing: Trying to backward through the graph a second time",
    summary=(
        "Training SpeechT5 with reentrant gradient checkpointing raises in the first backward. The relative positions "
        "are looked up once and handed to every encoder layer by keyword, where reentrant checkpointing does not "
        "detach them: each layer's own backward walks their graph, and the second finds it freed."
    ),
    symptoms=(
        Symptom(
            DOUBLE_BACKWARD,
            "the second layer's backward walks the graph of what the layers share again",
            exception="RuntimeError",
            message=r"Trying to backward through the graph a second time",
            clues=(
                Clue("SpeechT5 is what is trained", 0.2, text=r"(?i)speech_?t5", lacking=-0.4),
                Clue("a reentrant checkpoint runs it", 0.1, frames=("torch/utils/checkpoint.py:backward",)),
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
        "checkpointing is reentrant, by argument or by default; the release passes `position_bias` to the encoder's "
        "layers by keyword and the relative positions are trained, or it passes `encoder_hidden_states` to the "
        "decoder's by keyword; and there are two layers or more",
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
