"""WavLM with reentrant checkpointing: a backward that waits for itself, and recomputes layers without an end."""

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

ENDLESS = "backward without an end"
FAMILY = "wavlm"

FACTORS = (
    reentrant.ENABLED,
    reentrant.MODE,
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
    is_reentrant = reentrant.is_reentrant(configuration, mechanism)
    by_keyword = "position_bias" in mechanism["live_keywords"]
    return ENDLESS if is_reentrant and by_keyword and int(configuration["layers"]) >= 2 else TRAINS


REPORTED = Configuration({"checkpointing": "arguments", "use_reentrant": "True"})

CLAIMS = (
    reentrant.USE_FALSE,
    reentrant.LEAVE_UNSET,
    reentrant.BY_METHOD,
    reentrant.SWITCHED_OFF,
    Claim("freeze-feature-encoder", "`freeze_feature_encoder()`", "threads", change={"frozen": "convolutions"}),
    Claim(
        "freeze-relative-positions",
        "freeze the relative positions",
        "census",
        change={"frozen": "relative positions"},
    ),
    Claim("pin-4.52.4", "pin transformers 4.52.4", "everywhere", pin={"transformers": "4.52.4"}),
    reentrant.UPGRADE,
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
    constraints=(reentrant.MODE_NEEDS_CHECKPOINTING,),
    reported=REPORTED,
    reported_scope="trainer",
    trigger=Trigger(
        "checkpointing is reentrant, by argument or by default; the release passes `position_bias` to the layers by "
        "keyword; and there are two layers or more",
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
