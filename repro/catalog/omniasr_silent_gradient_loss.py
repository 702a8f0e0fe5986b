"""OmniASR with reentrant checkpointing: the convolutions over the sound get no gradient, without an error."""

from __future__ import annotations

from collections.abc import Sequence

from repro.vocabulary import (
    GRADIENTS_MISSING,
    TRAINS,
    Claim,
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

FAMILY = "omniasr"

FACTORS = (
    Factor(
        "checkpointing",
        ("off", "method", "arguments"),
        "who enables gradient checkpointing",
        model_levels=("off", "method"),
    ),
    Factor("use_reentrant", ("unset", "True", "False"), "`use_reentrant`, wherever checkpointing is enabled"),
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
    mode = configuration["use_reentrant"]
    reentrant = configuration["checkpointing"] != "off" and (
        mode == "True" or (mode == "unset" and mechanism["default_mode"] == "reentrant")
    )
    cut_off = mechanism["cut_off"][configuration["inputs"]] > 0
    return GRADIENTS_MISSING if reentrant and cut_off and configuration["frozen"] == "nothing" else TRAINS


def _says_so(facts: Sequence[Facts]) -> bool | None:
    """Look whether torch warned in the run that lost gradients, and not in one that lost none for the same reason."""
    losing, frozen = facts
    if losing["end"] != "completed" or not losing["gradients"]["missing"]:
        return None
    return bool(losing["warned"] and not frozen["warned"])


def _loses_gradients(facts: Facts) -> bool:
    return facts["end"] == "completed" and bool(facts["gradients"]["missing"])


def _observe(trial: Trial) -> Facts:
    from repro.observe import speech_model, speech_trainer

    observe = speech_model.observe if trial.scope == "model" else speech_trainer.observe
    return observe(FAMILY, trial.configuration)


def _probe() -> Mechanism:
    from repro.observe import speech_model

    levels = next(factor.levels for factor in FACTORS if factor.name == "inputs")
    cut_off = {str(level): speech_model.cut_off(FAMILY, inputs=level) for level in levels}
    return {**speech_model.probe(FAMILY), "cut_off": cut_off}


PLAIN = Configuration({factor.name: factor.default for factor in FACTORS})
REPORTED = PLAIN.but(checkpointing="arguments", use_reentrant="True")

CLAIMS = (
    Claim("use-reentrant-false", "`use_reentrant=False`", "threads", change={"use_reentrant": "False"}),
    Claim("use-reentrant-unset", "leave `use_reentrant` to the default", "default", change={"use_reentrant": "unset"}),
    Claim(
        "checkpointing-off",
        "train without gradient checkpointing",
        "threads",
        change={"checkpointing": "off", "use_reentrant": "unset"},
    ),
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
    Claim("upgrade", "upgrade transformers to the newest release", "threads", pin={"transformers": "latest"}),
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
            shows=_loses_gradients,
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
        "checkpointing is reentrant, by argument or by default; a checkpointed convolution gets no input that needs a "
        "gradient; and the convolutions are meant to be trained",
        predict,
    ),
    observe=_observe,
    probe=_probe,
    claims=CLAIMS,
    sources=(
        Source("census", "found by comparing every model's gradients with and without checkpointing"),
        Source("threads", "advice in public threads", "https://github.com/huggingface/transformers/issues/42489"),
        Source("default", "where the default mode changed", "https://github.com/huggingface/transformers/pull/43203"),
    ),
)
