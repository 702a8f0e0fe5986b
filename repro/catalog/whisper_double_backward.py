"""Whisper fine-tuning with gradient checkpointing: "Trying to backward through the graph a second time"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    Recognised,
    Scope,
    Source,
    Symptom,
    Trial,
    Trigger,
)

DOUBLE_BACKWARD = "double backward"
NO_GRADIENT = "loss has no gradient"
PREDICT_REFUSES = "predict refuses the argument"
CACHE_TOO_SHORT = "cache is too short"

ENCODER_LAYERS = 2
"""Of the tiny model, in every configuration."""

FACTORS = (
    Factor(
        "checkpointing",
        ("off", "arguments", "method", "both"),
        "who enables gradient checkpointing",
        model_levels=("off", "method"),
    ),
    reentrant.MODE,
    Factor("use_cache", ("untouched", "False", "True"), "`model.config.use_cache`"),
    Factor("decoder_layers", (2, 1, 3), "layers of the decoder"),
    Factor("encoder", ("trainable", "frozen"), "`model.freeze_encoder()`; with LoRA: adapters in the decoder only"),
    Factor("lora", ("off", "before", "after"), "LoRA, applied before or after checkpointing was enabled"),
    Factor(
        "precision",
        ("fp32", "bf16", "fp16"),
        "`bf16`, `fp16`: autocast",
        cuda_levels=("fp16",),
        model_levels=("fp32", "bf16"),
    ),
    Factor("attention", ("sdpa", "eager"), "implementation of attention"),
    Factor("evaluation", ("no", "steps"), "`eval_strategy`", ("trainer",)),
    Factor("predict_with_generate", ("no", "yes"), "`predict_with_generate`", ("trainer",)),
    Factor("accumulation", (1, 4), "`gradient_accumulation_steps`", ("trainer",)),
    Factor("tokenizer", ("not given", "given"), "`tokenizer=processor.feature_extractor`", ("trainer",)),
    Factor("best_model", ("no", "yes"), "`load_best_model_at_end` with `metric_for_best_model`", ("trainer",)),
    Factor("retain_graph", ("no", "yes"), "`backward(retain_graph=True)`", ("trainer",)),
    Factor("stray_variable", ("absent", "set"), "a line `model_gradient_checkpointing = True`", ("trainer",)),
    Factor("predict_after", ("no", "plain", "with argument"), "`trainer.predict` after training", ("trainer",)),
)

CONSTRAINTS = (
    reentrant.MODE_NEEDS_CHECKPOINTING,
    Constraint(
        "LoRA comes after checkpointing only where the script itself enables checkpointing",
        lambda c: c["lora"] != "after" or c["checkpointing"] in ("method", "both"),
    ),
    Constraint(
        "the best model is chosen by evaluations, so there have to be some",
        lambda c: c["best_model"] == "no" or c["evaluation"] == "steps",
    ),
)


def predict(configuration: Configuration, scope: Scope, mechanism: Mechanism) -> str | None:
    """Say what a configuration does, from how this release checkpoints Whisper.

    Reentrant checkpointing of a layer runs a backward of its own, from the layer's outputs to whatever graph its inputs
    still have. It cuts that graph for inputs given by position only. The encoder's output, given by keyword, keeps it:
    each decoder layer's backward then walks the encoder again, and the second one finds it freed. And a layer whose
    positional inputs need no gradient gets none, whatever its weights need.
    """
    is_reentrant = reentrant.is_reentrant(configuration, mechanism)
    adapted, trainable = configuration["lora"] != "off", configuration["encoder"] == "trainable"
    loses_gradients = False
    if is_reentrant:
        reached = {"encoder", "decoder"} if trainable else {"decoder"}
        if adapted:
            inputs = mechanism["inputs_with_gradient"][configuration["lora"]]
            if inputs is None:
                return None
            reached = set(inputs)
        by_keyword = "encoder_hidden_states" in mechanism["live_keywords"]
        encoder_is_live = "encoder" in reached
        if "decoder" not in reached and (by_keyword or not encoder_is_live):
            return NO_GRADIENT
        if by_keyword and encoder_is_live and int(configuration["decoder_layers"]) >= 2:
            return DOUBLE_BACKWARD
        loses_gradients = adapted and trainable and not encoder_is_live
    # Records from before this was probed have no such fact.
    outgrows = bool(mechanism.get("cache_is_short")) and int(configuration["decoder_layers"]) > ENCODER_LAYERS
    if outgrows and _trains_with_cache(configuration):
        return CACHE_TOO_SHORT
    if scope == "trainer":
        if outgrows and configuration["evaluation"] == "steps" and _evaluates_with_cache(configuration):
            return CACHE_TOO_SHORT
        if configuration["predict_after"] == "with argument" and configuration["predict_with_generate"] == "yes":
            return PREDICT_REFUSES
        if outgrows and configuration["predict_after"] != "no" and _evaluates_with_cache(configuration):
            return CACHE_TOO_SHORT
    return GRADIENTS_MISSING if loses_gradients else TRAINS


def _trains_with_cache(configuration: Configuration) -> bool:
    return configuration["use_cache"] != "False" and configuration["checkpointing"] == "off"


def _evaluates_with_cache(configuration: Configuration) -> bool:
    """Say whether an evaluation has a cache: checkpointing switches it off in training only, generation needs one."""
    return configuration["use_cache"] != "False" or configuration["predict_with_generate"] == "yes"


def _evaluation_is_the_cause(facts: Sequence[Facts]) -> bool | None:
    """Look whether an evaluation or a generation had begun when the error came, and whether it comes without any."""
    with_evaluation, without = facts
    if not with_evaluation.get("exception"):
        return None
    began = with_evaluation["evaluations"] + with_evaluation["generations"] > 0
    return began and not without.get("exception")


def _predict_generates(facts: Sequence[Facts]) -> bool | None:
    """Look whether `predict` generated, and gave a metric made of what was generated."""
    predicted = facts[0].get("predicted") or {}
    return bool(predicted.get("generated")) and "test_wer" in predicted.get("metrics", {})


def _variable_does_nothing(facts: Sequence[Facts]) -> bool | None:
    """Look whether checkpointing ran because of the variable, and whether the losses moved."""
    without, with_variable = facts
    if without["end"] != "completed" or with_variable["end"] != "completed":
        return None
    return bool(with_variable["proofs"]["checkpoint_calls"] == 0 and with_variable["losses"] == without["losses"])


def _observe(trial: Trial) -> Facts:
    from repro.observe import whisper_model, whisper_trainer

    observe = whisper_model.observe if trial.scope == "model" else whisper_trainer.observe
    return observe(trial.configuration)


def _probe() -> Mechanism:
    from repro.observe import whisper_model

    return whisper_model.probe()


def _recognise(live: Any) -> Recognised | None:
    from repro.guard import whisper

    return whisper.recognise(FAILURE, live)


def _script(configuration: Configuration) -> str:
    from repro.script import whisper

    return whisper.script(configuration)


PLAIN = Configuration({factor.name: factor.default for factor in FACTORS})
REPORTED = PLAIN.but(
    checkpointing="both",
    use_cache="False",
    evaluation="steps",
    predict_with_generate="yes",
    tokenizer="given",
    best_model="yes",
    stray_variable="set",
)

CLAIMS = (
    Claim(
        "W1",
        "remove the manual `gradient_checkpointing_enable()` and let the arguments do it",
        "report",
        change={"checkpointing": "arguments"},
    ),
    Claim(
        "W2",
        "do not set `use_cache=False`; the Trainer switches it by itself",
        "report",
        change={"use_cache": "untouched"},
    ),
    Claim(
        "W3",
        "W1 and W2 together, the answer's main fix",
        "report",
        change={"checkpointing": "arguments", "use_cache": "untouched"},
    ),
    Claim(
        "W4",
        "the cause is evaluation: `predict_with_generate` reads tensors that training has freed",
        "report",
        kind="statement",
        looks_at=(REPORTED, REPORTED.but(evaluation="no", predict_with_generate="no", best_model="no")),
        holds=_evaluation_is_the_cause,
    ),
    Claim(
        "W5",
        "`predict_with_generate=False` while training",
        "report",
        change={"predict_with_generate": "no"},
    ),
    Claim(
        "W6",
        "after that, `trainer.predict(test_dataset=..., predict_with_generate=True)` gives generated metrics",
        "report",
        kind="statement",
        looks_at=(PLAIN.but(evaluation="steps", predict_after="with argument"),),
        holds=_predict_generates,
        about_failure=False,
    ),
    Claim(
        "W7",
        "the variable `model_gradient_checkpointing = True` does nothing",
        "report",
        kind="statement",
        looks_at=(PLAIN, PLAIN.but(stray_variable="set")),
        holds=_variable_does_nothing,
        about_failure=False,
    ),
    Claim(
        "use-reentrant-false",
        "`use_reentrant=False`",
        "threads",
        change={"use_reentrant": "False"},
        code="""args = Seq2SeqTrainingArguments(
    ...,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
)
# and if your script calls the method itself:
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})""",
    ),
    Claim("use-reentrant-true", "`use_reentrant=True`", "threads", change={"use_reentrant": "True"}),
    Claim(
        "retain-graph",
        "`retain_graph=True` in the backward, as the message itself suggests",
        "threads",
        change={"retain_graph": "yes"},
    ),
    Claim(
        "pin-4.51.3",
        "pin transformers 4.51.3",
        "threads",
        pin={"transformers": "4.51.3"},
        code='pip install "transformers==4.51.3"',
    ),
    Claim(
        "upgrade",
        "upgrade transformers to the newest release",
        "threads",
        pin={"transformers": "latest"},
        code="pip install --upgrade transformers",
    ),
    Claim(
        "pin-torch",
        "pin torch to one of the release's time as well",
        "threads",
        pin={"torch": "of its time"},
    ),
    Claim(
        "fp16-off",
        "turn fp16 off",
        "threads",
        base=REPORTED.but(precision="fp16"),
        change={"precision": "fp32"},
        needs_device="cuda",
        why_device="fp16 training on a CPU is refused by some releases and silently fp32 in others",
    ),
    Claim(
        "freeze-encoder",
        "freeze the encoder",
        "threads",
        change={"encoder": "frozen"},
        code="model.freeze_encoder()  # only if a frozen encoder is what you want: it changes what is trained",
    ),
    Claim(
        "checkpointing-off",
        "train without gradient checkpointing",
        "threads",
        change={"checkpointing": "off"},
        code="args = Seq2SeqTrainingArguments(..., gradient_checkpointing=False)",
    ),
)

_WHISPER = Clue("Whisper is what is trained", 0.1, text=r"[Ww]hisper")
_CHECKPOINTING = Clue(
    "gradient checkpointing is on",
    0.1,
    text=r"(?:gradient|activation)_checkpointing(?:_enable\(|\W{1,4}True)",
)
_TRAINER_STEP = Clue("transformers' Trainer takes the step", 0.2, frames=("transformers/trainer.py:training_step",))

DOUBLE_BACKWARD_CLUES = (
    Clue(
        "a reentrant checkpoint runs a backward of its own, and that is the one that fails",
        0.15,
        frames=("torch/utils/checkpoint.py:backward",),
        lacking=-0.4,
    ),
    _WHISPER,
    _CHECKPOINTING,
    _TRAINER_STEP,
)
NO_GRADIENT_CLUES = (
    Clue(
        "torch warned that no input of a checkpoint requires a gradient",
        0.2,
        text=r"None of the inputs have requires_grad=True",
    ),
    Clue("LoRA is in use", 0.05, text=r"(?i)\b(?:lora|peft)"),
    Clue("the loss itself has no gradient", 0.05, frames=("torch/_tensor.py:backward",)),
    _WHISPER,
    _CHECKPOINTING,
)
PREDICT_REFUSES_CLUES = (
    Clue("`generate` names `predict_with_generate`", 0.2, text=r"model_kwargs.{1,200}predict_with_generate"),
    Clue(
        "`predict` was called, and passed it on",
        0.25,
        frames=("transformers/trainer_seq2seq.py:predict", "transformers/trainer_seq2seq.py:prediction_step"),
    ),
)

FAILURE = Failure(
    id="whisper-double-backward",
    title="Whisper with gradient checkpointing: Trying to backward through the graph a second time",
    summary=(
        "Fine-tuning Whisper with `Seq2SeqTrainer` and gradient checkpointing raises in the first backward. Reentrant "
        "checkpointing detaches only what a layer is given by position; releases that hand the encoder's output to the "
        "decoder's layers by keyword let every layer's backward walk the encoder's graph again."
    ),
    symptoms=(
        Symptom(
            DOUBLE_BACKWARD,
            "the second decoder layer's backward walks the encoder's graph again, which the first one freed",
            exception="RuntimeError",
            message=r"Trying to backward through the graph a second time",
            clues=DOUBLE_BACKWARD_CLUES,
        ),
        Symptom(
            NO_GRADIENT,
            "no checkpointed layer of the decoder has a positional input that needs a gradient",
            exception="RuntimeError",
            message=r"element 0 of tensors does not require grad and does not have a grad_fn",
            clues=NO_GRADIENT_CLUES,
        ),
        Symptom(
            PREDICT_REFUSES,
            "`predict` hands its extra arguments to `generate`, which knows no `predict_with_generate`",
            exception="ValueError",
            message=r"model_kwargs.*predict_with_generate",
            clues=PREDICT_REFUSES_CLUES,
        ),
        Symptom(
            CACHE_TOO_SHORT,
            "the decoder's cache has as many layers as the encoder, and the decoder has more",
            exception="IndexError",
            message=r"^list index out of range$",
        ),
    ),
    factors=FACTORS,
    constraints=CONSTRAINTS,
    reported=REPORTED,
    reported_scope="trainer",
    trigger=Trigger(
        "checkpointing is reentrant, by argument or by default; the release passes `encoder_hidden_states` to the "
        "decoder's layers by keyword; the encoder's output has a gradient; and the decoder has two layers or more",
        predict,
    ),
    observe=_observe,
    probe=_probe,
    recognise=_recognise,
    claims=CLAIMS,
    script=_script,
    sources=(
        Source("report", "a report with its answer: Whisper small, Seq2SeqTrainer, fp16, checkpointing enabled twice"),
        Source("threads", "advice in public threads", "https://discuss.huggingface.co/t/168571"),
        Source("layer", "where the layer came from", "https://github.com/huggingface/transformers/pull/37223"),
        reentrant.EVERYWHERE,
        reentrant.DEFAULT,
        Source("unsloth", "the same seen elsewhere", "https://github.com/unslothai/unsloth/issues/2972"),
    ),
)
