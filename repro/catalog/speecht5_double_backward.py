"""SpeechT5 with reentrant checkpointing: what all layers share is walked back once per layer."""

from __future__ import annotations

from repro import reentrant
from repro.vocabulary import (
    TRAINS,
    Claim,
    Clue,
    Configuration,
    Factor,
    Failure,
    Mechanism,
    Scope,
    Source,
    Symptom,
    Trigger,
)

DOUBLE_BACKWARD = "double backward"
FAMILY = "speecht5"

FACTORS = (
    reentrant.ENABLED,
    reentrant.MODE,
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
    is_reentrant = reentrant.is_reentrant(configuration, mechanism)
    shared = set(mechanism["live_keywords"])
    if configuration["frozen"] == "relative positions":
        shared.discard("position_bias")
    shared &= {"position_bias", "encoder_hidden_states"}
    return DOUBLE_BACKWARD if is_reentrant and shared and int(configuration["layers"]) >= 2 else TRAINS


REPORTED = Configuration({"checkpointing": "arguments", "use_reentrant": "True"})

CLAIMS = (
    reentrant.USE_FALSE,
    reentrant.LEAVE_UNSET,
    reentrant.BY_METHOD,
    reentrant.SWITCHED_OFF,
    Claim("freeze-feature-encoder", "`freeze_feature_encoder()`", "threads", change={"frozen": "convolutions"}),
    Claim(
        "freeze-relative-positions",
        "freeze the relative positions, which no layer then walks back to",
        "census",
        change={"frozen": "relative positions"},
    ),
    Claim("pin-4.52.4", "pin transformers 4.52.4", "everywhere", pin={"transformers": "4.52.4"}),
    reentrant.UPGRADE,
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
    constraints=(reentrant.MODE_NEEDS_CHECKPOINTING,),
    reported=REPORTED,
    reported_scope="trainer",
    trigger=Trigger(
        "checkpointing is reentrant, by argument or by default; the release passes `position_bias` to the encoder's "
        "layers by keyword and the relative positions are trained, or it passes `encoder_hidden_states` to the "
        "decoder's by keyword; and there are two layers or more",
        predict,
    ),
    observe=reentrant.observer_of(FAMILY),
    probe=reentrant.probe_of(FAMILY),
    claims=CLAIMS,
    script=reentrant.script_of(FAMILY),
    sources=(
        reentrant.CENSUS,
        Source("threads", "advice in public threads", "https://github.com/huggingface/transformers/issues/28056"),
        reentrant.EVERYWHERE,
        reentrant.DEFAULT,
    ),
)
