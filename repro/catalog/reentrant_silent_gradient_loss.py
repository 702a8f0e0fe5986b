"""Frozen front layers, or LoRA, with reentrant checkpointing: layers that get no gradient, with an error or without."""

from __future__ import annotations

from collections.abc import Sequence

from repro import reentrant
from repro.vocabulary import (
    GRADIENTS_MISSING,
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

NO_GRADIENT = "loss has no gradient"
NO_EMBEDDINGS = "model names no input embeddings"
FAMILIES = ("wav2vec2", "whisper")
ALL = "all before the layers"

FACTORS = (
    Factor("model", FAMILIES, "wav2vec2 for CTC, or Whisper's encoder with a classifier"),
    reentrant.ENABLED,
    reentrant.MODE,
    Factor("frozen", ("nothing", "convolutions", ALL), "which parameters in front of the layers the script freezes"),
    Factor("lora", ("off", "before", "after"), "LoRA, applied before or after checkpointing was enabled"),
    Factor("head", ("trainable", "frozen"), "whether what comes after the layers is trained, too"),
    Factor(
        "inputs",
        ("untouched", "enable_input_require_grads", "hook"),
        "what makes the first layer's input need a gradient: nothing, the model's method, a hook on the front",
    ),
)

CONSTRAINTS = (
    reentrant.MODE_NEEDS_CHECKPOINTING,
    Constraint(
        "LoRA freezes all that it does not adapt",
        lambda c: c["lora"] == "off" or c["frozen"] == "nothing",
    ),
    Constraint(
        "LoRA comes after checkpointing only where the script itself enables checkpointing",
        lambda c: c["lora"] != "after" or c["checkpointing"] == "method",
    ),
)


def _kind_of_front(configuration: Configuration) -> str:
    """Return what decides whether the front of the model still has something to train: as the probe names it."""
    lora, frozen = str(configuration["lora"]), str(configuration["frozen"])
    return f"LoRA {lora}" if lora != "off" else f"frozen: {frozen}"


def predict(configuration: Configuration, _scope: Scope, mechanism: Mechanism) -> str | None:
    """Say what a configuration does, from whether the input of the first checkpointed layer needs a gradient.

    Reentrant checkpointing gives a layer's parameters a gradient only if one of its inputs needs one. Where the first
    layer's does not, none of the layers gets any: the loss has no gradient at all, unless what comes after them trains.
    """
    live = mechanism["first_layer_is_live"][configuration["model"]][_kind_of_front(configuration)]
    live = live[configuration["inputs"]]
    if live is None:
        return None
    if live == "NotImplementedError":
        return NO_EMBEDDINGS
    is_reentrant = reentrant.is_reentrant(configuration, mechanism)
    if not is_reentrant or live:
        return TRAINS
    return GRADIENTS_MISSING if configuration["head"] == "trainable" else NO_GRADIENT


def _harmless(facts: Sequence[Facts]) -> bool | None:
    """Look whether every run in which torch warned kept its gradients."""
    warned = [one for one in facts if one["warned"]]
    return all(one["end"] == "completed" and not one["gradients"]["missing"] for one in warned) if warned else None


def _safe(facts: Sequence[Facts]) -> bool | None:
    """Look whether every model keeps its gradients."""
    return all(one["end"] == "completed" and not one["gradients"]["missing"] for one in facts)


def _observe(trial: Trial) -> Facts:
    from repro.observe import speech_model, speech_trainer

    observe = speech_model.observe if trial.scope == "model" else speech_trainer.observe
    return observe(str(trial.configuration["model"]), trial.configuration)


def _probe() -> Mechanism:
    from repro.observe import speech_model

    fronts: tuple[dict[str, str | int], ...] = (
        {"frozen": "nothing", "lora": "off"},
        {"frozen": "convolutions", "lora": "off"},
        {"frozen": ALL, "lora": "off"},
        {"frozen": "nothing", "lora": "before"},
        {"frozen": "nothing", "lora": "after"},
    )
    inputs = next(factor.levels for factor in FACTORS if factor.name == "inputs")
    return {
        "default_mode": speech_model.probe(FAMILIES[0])["default_mode"],
        "first_layer_is_live": {
            family: {
                _kind_of_front(Configuration(front)): {
                    str(how): speech_model.first_layer_is_live(family, **front, inputs=how) for how in inputs
                }
                for front in fronts
            }
            for family in FAMILIES
        },
    }


def _script(configuration: Configuration) -> str:
    from repro.script import encoders

    return encoders.script(str(configuration["model"]), configuration)


PLAIN = Configuration({factor.name: factor.default for factor in FACTORS})
REPORTED = PLAIN.but(checkpointing="arguments", use_reentrant="True", frozen=ALL)
ADAPTED = PLAIN.but(model="whisper", checkpointing="method", use_reentrant="True", lora="before", head="frozen")
FROZEN_FRONT = REPORTED.but(frozen="convolutions")

CLAIMS = (
    Claim("use-reentrant-false", "`use_reentrant=False`", "adapters", change={"use_reentrant": "False"}),
    Claim(
        "checkpointing-off",
        "train without gradient checkpointing",
        "adapters",
        change={"checkpointing": "off", "use_reentrant": "unset"},
    ),
    Claim(
        "enable-input-require-grads",
        "call `model.enable_input_require_grads()`",
        "adapters",
        change={"inputs": "enable_input_require_grads"},
    ),
    Claim(
        "hook",
        "a hook that makes the front's output need a gradient",
        "adapters-fix",
        change={"inputs": "hook"},
        code="front.register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))",
    ),
    Claim(
        "lora-after",
        "apply LoRA after checkpointing was enabled",
        "modes",
        base=ADAPTED,
        change={"lora": "after"},
    ),
    Claim(
        "lora-use-reentrant-false",
        "`use_reentrant=False`, with LoRA",
        "modes",
        base=ADAPTED,
        change={"use_reentrant": "False"},
    ),
    Claim(
        "lora-enable-input-require-grads",
        "call `model.enable_input_require_grads()`, with LoRA",
        "adapters",
        base=ADAPTED,
        change={"inputs": "enable_input_require_grads"},
    ),
    Claim(
        "freezing-the-front-is-safe",
        "freezing the convolutions in front costs no other parameter its gradient",
        "report",
        kind="statement",
        looks_at=(FROZEN_FRONT, FROZEN_FRONT.but(model="whisper")),
        holds=_safe,
        about_failure=False,
    ),
    Claim(
        "warning-is-harmless",
        "the warning that none of the inputs requires a gradient can be ignored",
        "report",
        kind="statement",
        looks_at=(FROZEN_FRONT, FROZEN_FRONT.but(model="whisper")),
        holds=_harmless,
        about_failure=False,
    ),
    Claim("upgrade", "upgrade transformers to the newest release", "adapters", pin={"transformers": "latest"}),
)

FAILURE = Failure(
    id="reentrant-silent-gradient-loss",
    title="Frozen front or LoRA with reentrant checkpointing: layers lose their gradients, often without an error",
    summary=(
        "Where all before a model's layers is frozen, by the script or by LoRA, the first checkpointed layer's input "
        "needs no gradient, and reentrant checkpointing gives none of the layers any. With a head that trains, the run "
        "goes on and moves the head alone; without, the first backward raises."
    ),
    symptoms=(
        Symptom(
            NO_GRADIENT,
            "no checkpointed layer has an input that needs a gradient, and nothing after them trains",
            exception="RuntimeError",
            message=r"element 0 of tensors does not require grad and does not have a grad_fn",
            clues=(
                Clue(
                    "torch warned that no input of a checkpoint requires a gradient",
                    0.2,
                    text=r"None of the inputs have requires_grad=True",
                ),
                Clue("a wav2vec2 is what is trained", 0.1, text=r"(?i)wav2vec"),
            ),
        ),
        Symptom(
            NO_EMBEDDINGS,
            "`enable_input_require_grads` asks for input embeddings, and a model of sound has none to name",
            exception="NotImplementedError",
        ),
        Symptom(
            GRADIENTS_MISSING,
            "the layers have no gradients where the run without checkpointing has them",
        ),
    ),
    factors=FACTORS,
    constraints=CONSTRAINTS,
    reported=REPORTED,
    reported_scope="trainer",
    full_scopes=(),
    pairwise_scopes=("model", "trainer"),
    trigger=Trigger(
        "checkpointing is reentrant, by argument or by default, and nothing makes the input of the first checkpointed "
        "layer need a gradient: all before the layers is frozen",
        predict,
    ),
    observe=_observe,
    probe=_probe,
    claims=CLAIMS,
    script=_script,
    sources=(
        Source("report", "what is said about the warning", "https://github.com/huggingface/transformers/issues/21381"),
        Source("adapters", "LoRA and checkpointing", "https://github.com/huggingface/peft/issues/137"),
        Source("adapters-fix", "where peft prepares its inputs", "https://github.com/huggingface/peft/pull/617"),
        Source("modes", "a table of modes that work and do not", "https://github.com/huggingface/trl/issues/835"),
    ),
)
