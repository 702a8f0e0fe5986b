"""OmniASR with reentrant checkpointing: the convolutions over the sound get no gradient, without an error."""

from __future__ import annotations

from collections.abc import Sequence

from repro import reentrant
from repro.vocabulary import (
    GRADIENTS_MISSING,
    TRAINS,
    Claim,
    Configuration,
    Factor,
    Facts,
    Failure,
    Mechanism,
    Scope,
    Source,
    Symptom,
    Trigger,
)

FAMILY = "omniasr"

FACTORS = (
    reentrant.ENABLED,
    reentrant.MODE,
    Factor("frozen", ("nothing", "convolutions"), "which parameters the script freezes"),
    Factor(
        "inputs",
        ("untouched", "enable_input_require_grads", "hook"),
        "what makes the first checkpointed layer's input need a gradient: nothing, the model's method, a hook on it",
    ),
)


def predict(configuration: Configuration, _scope: Scope, mechanism: Mechanism) -> str | None:
    """Say what a configuration does, from which checkpointed layers get an input that needs a gradient.

    Reentrant checkpointing gives a layer's parameters a gradient only if one of its inputs needs one. The first
    convolution's input is the sound itself; what it returns then needs none either, and so on up to the first layer
    that is not checkpointed. A frozen convolution has nothing to lose.
    """
    if not mechanism["in_release"]:
        return None
    is_reentrant = reentrant.is_reentrant(configuration, mechanism)
    cut_off = mechanism["cut_off"][configuration["inputs"]] > 0
    return GRADIENTS_MISSING if is_reentrant and cut_off and configuration["frozen"] == "nothing" else TRAINS


def _says_so(facts: Sequence[Facts]) -> bool | None:
    """Look whether torch warned in the run that lost gradients, and not in one that lost none for the same reason."""
    losing, frozen = facts
    if losing["end"] != "completed" or not losing["gradients"]["missing"]:
        return None
    return bool(losing["warned"] and not frozen["warned"])


def _probe() -> Mechanism:
    from repro.observe import speech_model

    levels = next(factor.levels for factor in FACTORS if factor.name == "inputs")
    cut_off = {str(level): speech_model.cut_off(FAMILY, inputs=level) for level in levels}
    return {**speech_model.probe(FAMILY), "cut_off": cut_off}


PLAIN = Configuration({factor.name: factor.default for factor in FACTORS})
REPORTED = PLAIN.but(checkpointing="arguments", use_reentrant="True")

CLAIMS = (
    reentrant.USE_FALSE,
    reentrant.LEAVE_UNSET,
    reentrant.SWITCHED_OFF,
    Claim(
        "enable-input-require-grads",
        "call `model.enable_input_require_grads()`",
        "threads",
        change={"inputs": "enable_input_require_grads"},
    ),
    Claim(
        "hook",
        "a hook that makes the sound itself need a gradient",
        "threads",
        change={"inputs": "hook"},
        code="subsampling.register_forward_pre_hook(lambda module, inputs: inputs[0].requires_grad_(True))",
    ),
    Claim(
        "freeze-convolutions",
        "freeze the convolutions, if their gradients are not wanted",
        "census",
        change={"frozen": "convolutions"},
    ),
    Claim(
        "warning-tells",
        "torch's warning that no input needs a gradient tells a run that loses gradients from one that does not",
        "threads",
        kind="statement",
        looks_at=(REPORTED, REPORTED.but(frozen="convolutions")),
        holds=_says_so,
    ),
    reentrant.UPGRADE,
)

FAILURE = Failure(
    id="omniasr-silent-gradient-loss",
    title="OmniASR with reentrant checkpointing: the convolutions are not trained, and nothing says so",
    summary=(
        "Training OmniASR with reentrant gradient checkpointing runs to its end, and leaves every parameter of the "
        "convolutions over the sound without a gradient: the first of them is checkpointed, its only input is the "
        "sound, and that needs no gradient."
    ),
    symptoms=(
        Symptom(
            GRADIENTS_MISSING,
            "parameters of the convolutions have no gradient where the run without checkpointing has one",
        ),
    ),
    factors=FACTORS,
    constraints=(reentrant.MODE_NEEDS_CHECKPOINTING,),
    reported=REPORTED,
    reported_scope="trainer",
    trigger=Trigger(
        "checkpointing is reentrant, by argument or by default; a checkpointed convolution gets no input that needs a "
        "gradient; and the convolutions are meant to be trained",
        predict,
    ),
    observe=reentrant.observer_of(FAMILY),
    probe=_probe,
    claims=CLAIMS,
    script=reentrant.script_of(FAMILY),
    sources=(
        reentrant.CENSUS,
        Source("threads", "advice in public threads", "https://github.com/huggingface/transformers/issues/42489"),
        reentrant.DEFAULT,
    ),
)
