"""A callback that evaluates the training set while training: the device runs out of memory in that evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from repro.observe import ctc_facts
from repro.vocabulary import (
    REFUSED,
    TRAINS,
    Claim,
    Clue,
    Configuration,
    Constraint,
    Factor,
    Facts,
    Failure,
    Level,
    Mechanism,
    Scope,
    Source,
    Symptom,
    Trial,
    Trigger,
)

if TYPE_CHECKING:
    from repro.memory.laws import Law

OUT_OF_MEMORY = "out of memory in the evaluation"
OUT_OF_MEMORY_ELSEWHERE = "out of memory in training"
NO_BATCH_SIZE = "no batch size is left to try"
NOT_EVALUATED = "the callback never evaluates"
METRIC_GONE = "a metric is gone"
METRIC_CHANGED = "a metric changes"

TRAINER: tuple[Scope, ...] = ("trainer",)


def _factor(name: str, levels: tuple[Level, ...], says: str) -> Factor:
    return Factor(name, levels, says, TRAINER)


FACTORS = (
    _factor("callback", ("off", "when should_evaluate", "every step"), "when the callback's `on_step_end` evaluates"),
    _factor(
        "dataset",
        ("training set", "evaluation set", "part of the training set"),
        "what it evaluates; a part is as many examples as the evaluation set has",
    ),
    _factor("metrics", ("wer", "none", "count"), "`compute_metrics`: WER by argmax, none, or one without an argmax"),
    _factor("accumulation", ("unset", 1, 4, 15, 1000), "`eval_accumulation_steps`"),
    _factor(
        "preprocess",
        ("none", "argmax", "argmax and labels"),
        "what `preprocess_logits_for_metrics` returns",
    ),
    _factor("batch_metrics", ("no", "yes"), "`batch_eval_metrics`"),
    _factor("concat", ("yes", "no"), "`eval_do_concat_batches`"),
    _factor("loss_only", ("no", "yes"), "`prediction_loss_only`"),
    _factor("eval_batch", ("unset", 1, 2, 8), "`per_device_eval_batch_size`; the default is 8"),
    _factor("call_batch", ("unset", 2), "`evaluate(..., per_device_eval_batch_size=...)`"),
    _factor(
        "guard",
        ("none", "eval+no_grad", "zero_grad+eval+no_grad", "zero_grad", "gc", "empty_cache"),
        "what the callback does around the evaluation",
    ),
    _factor(
        "schedule",
        ("every 5 steps", "every 100 steps", "epoch", "epoch, as written"),
        "`eval_strategy` and `eval_steps`; as written: `evaluation_strategy`, whatever the release calls it",
    ),
    _factor("lengths", ("equal", "ragged"), "the lengths of the clips"),
    _factor("vocabulary", (256, 32), "the width of the logits"),
    _factor("checkpointing", ("no", "yes"), "`gradient_checkpointing`"),
    _factor("empty_cache_steps", ("unset", 1), "`torch_empty_cache_steps`"),
    _factor("auto_find", ("no", "yes"), "`auto_find_batch_size`"),
)

PLAIN = Configuration({factor.name: factor.default for factor in FACTORS})
REPORTED = PLAIN.but(callback="when should_evaluate")

INSIDE_THE_CALLBACK = ("dataset", "guard", "call_batch")
ONCE = ("every 100 steps", "epoch, as written")

CONSTRAINTS = (
    Constraint(
        "without the callback there is nothing to write in it",
        lambda c: c["callback"] != "off" or all(c[name] == PLAIN[name] for name in INSIDE_THE_CALLBACK),
    ),
    Constraint(
        "a hundred steps, and another spelling, show what the others show: they are run once, as the report has it",
        lambda c: c["schedule"] not in ONCE or c.but(schedule="every 5 steps") == REPORTED,
    ),
    Constraint(
        "evaluating at every step takes five times as long, and shows no more on a set that fits",
        lambda c: (
            c["callback"] != "every step"
            or c["dataset"] != "training set"
            or c.but(callback="when should_evaluate") == REPORTED
        ),
    ),
    Constraint(
        "metrics by batch are metrics",
        lambda c: c["batch_metrics"] == "no" or c["metrics"] == "wer",
    ),
    Constraint(
        "an argument that `evaluate` lacks ends every run in the same way",
        lambda c: c["call_batch"] == "unset" or c.but(call_batch="unset", guard="none") == REPORTED,
    ),
)

ARGUMENTS: dict[str, tuple[Level, str]] = {
    "batch_metrics": ("yes", "batch_eval_metrics"),
    "concat": ("no", "eval_do_concat_batches"),
    "empty_cache_steps": (1, "torch_empty_cache_steps"),
    "schedule": ("epoch, as written", "evaluation_strategy"),
}
"""What some releases lack: by factor, the level that needs it."""

FLOAT, INTEGER = 4, 8
EDGE = 0.15
"""Share of the capacity within which the hypothesis, which knows no temporaries, says nothing."""


def predict(configuration: Configuration, scope: Scope, mechanism: Mechanism) -> str | None:
    """Say what a configuration does, from what an evaluation has to keep on a device of this capacity.

    Every batch's predictions stay on the device until they are offloaded, which happens after the last batch unless
    `eval_accumulation_steps` says otherwise; and joining a batch to what is there makes a copy of all of it. So the
    peak is what training holds, and twice what is kept, or once where nothing is joined.
    """
    del scope
    if any(
        configuration[name] == level and argument in mechanism["lacks"] for name, (level, argument) in ARGUMENTS.items()
    ):
        return REFUSED
    if configuration["callback"] != "off" and _evaluates(configuration):
        if configuration["call_batch"] != "unset":
            return REFUSED
        needed = mechanism["resident"] + max(_kept(configuration, mechanism), _forward(configuration, mechanism))
        if abs(needed / mechanism["capacity"] - 1) < EDGE:
            return None
        if needed > mechanism["capacity"]:
            return NO_BATCH_SIZE if configuration["auto_find"] == "yes" else OUT_OF_MEMORY
        return _metric(configuration, mechanism)
    return NOT_EVALUATED if configuration["callback"] != "off" else TRAINS


def _evaluates(configuration: Configuration) -> bool:
    """Tell whether the flag that the callback waits for is ever set at the end of a step."""
    return configuration["callback"] == "every step" or "epoch" not in str(configuration["schedule"])


def _kept(configuration: Configuration, mechanism: Mechanism) -> float:
    """Return the bytes that predictions take at the most, without those of the last batch's forward."""
    if configuration["metrics"] == "none" or "yes" in (configuration["loss_only"], configuration["batch_metrics"]):
        return 0
    examples = mechanism["examples"][configuration["dataset"]]
    batch = _batch(configuration, mechanism)
    batches = math.ceil(examples / batch)
    accumulation = configuration["accumulation"]
    held = batches if accumulation == "unset" else min(batches, int(accumulation))
    # Results from before workloads could be widened do not say that theirs was not.
    logits, characters = int(configuration["vocabulary"]) * mechanism.get("widening", 1) * FLOAT, INTEGER
    per_frame = logits if configuration["preprocess"] == "none" else characters
    copies = 2 if configuration["concat"] == "yes" and held > 1 else 1
    frames = mechanism["frames"][configuration["lengths"]]
    return float(copies * held * batch * frames * per_frame)


def _batch(configuration: Configuration, mechanism: Mechanism) -> int:
    return mechanism["batch_of"] if configuration["eval_batch"] == "unset" else int(configuration["eval_batch"])


def _forward(configuration: Configuration, mechanism: Mechanism) -> float:
    longer = mechanism["frames"][configuration["lengths"]] / mechanism["frames"]["equal"]
    return float(mechanism["batch"] * longer * _batch(configuration, mechanism) / mechanism["batch_of"])


def _metric(configuration: Configuration, mechanism: Mechanism) -> str:
    """Say what becomes of the metric in a run that fits."""
    if configuration["loss_only"] == "yes" and configuration["metrics"] != "none":
        return METRIC_GONE
    if configuration["lengths"] == "ragged" and configuration["metrics"] == "wer":
        # Frames of padding are transcribed too. A smaller batch has fewer of them; and where batches are joined, the
        # shorter ones are filled up with -100 in every character, of which the first one then is the most likely.
        padded_less = _batch(configuration, mechanism) < mechanism["batch_of"]
        joined = mechanism["examples"][configuration["dataset"]] > mechanism["batch_of"]
        otherwise = any(configuration[name] != PLAIN[name] for name in ("preprocess", "batch_metrics", "concat"))
        if padded_less or (joined and otherwise):
            return METRIC_CHANGED
    return TRAINS


def law(configuration: Configuration) -> Law:
    """Return the law of a configuration's peak on the emulated device.

    Fitted, where it is, to transformers 5.24, and within 1 % of the meter there; within 2 % in 4.53.3 and 5.0.0. In
    4.41.2, training on ragged clips takes 3.5 % less. `repro budgets compare` tells how releases differ, and why.
    """
    from repro.observe import ctc_law

    evaluates = configuration["callback"] != "off" and _evaluates(configuration)
    return ctc_law.law(configuration, evaluates=evaluates)


def _observe(trial: Trial) -> Facts:
    from repro.observe import ctc_memory

    configuration, capacity = trial.configuration, int(_probe()["capacity"])
    facts = ctc_memory.observe(configuration, capacity=capacity, whole=configuration in BUDGETED)
    return {**facts, "configured_to_evaluate": configuration["callback"] != "off"}


def _probe() -> Mechanism:
    from repro.observe import ctc_memory

    return ctc_memory.probe(PLAIN, REPORTED)


def _script(configuration: Configuration) -> str:
    from repro.script import ctc_memory

    return ctc_memory.script(configuration)


RAGGED = REPORTED.but(lengths="ragged")
ACCUMULATION = tuple(REPORTED.but(accumulation=steps) for steps in (1, 4, 15, 1000))

BUDGETED = (
    PLAIN,
    PLAIN.but(lengths="ragged"),
    PLAIN.but(checkpointing="yes"),
    REPORTED,
    RAGGED,
    REPORTED.but(accumulation=15),
    REPORTED.but(concat="no"),
)
"""One run for each of the places where a run here takes the most that it takes: in training, on clips of one length or
padded ones, or with checkpointing; in joining batches, padding them first, or joining some; and in a list of them."""

CLAIMS = (
    Claim(
        "C1",
        "the cause: the evaluation runs in training mode and keeps gradients",
        "report",
        kind="statement",
        looks_at=(REPORTED,),
        holds=ctc_facts.trains_or_keeps_gradients,
    ),
    Claim(
        "C1-cure",
        "`model.eval()` and `torch.no_grad()` in the callback",
        "report",
        change={"guard": "eval+no_grad"},
    ),
    Claim("C2", "`evaluate(..., per_device_eval_batch_size=2)`", "report", change={"call_batch": 2}),
    Claim(
        "C3",
        "evaluation takes the training batch size by default",
        "report",
        kind="statement",
        looks_at=(REPORTED,),
        holds=ctc_facts.uses_training_batch,
    ),
    Claim(
        "C4",
        '`evaluation_strategy="epoch"`',
        "report",
        change={"schedule": "epoch, as written"},
        today={"schedule": "epoch"},
        says_today='`eval_strategy="epoch"`, or the name that the release has for it',
    ),
    Claim("C4-steps", "`eval_steps=100`", "report", change={"schedule": "every 100 steps"}),
    Claim(
        "C5",
        "gradients are alive when the callback is called, so that `zero_grad(set_to_none=True)` frees them",
        "report",
        kind="statement",
        looks_at=(REPORTED,),
        holds=ctc_facts.gradients_are_alive,
    ),
    Claim(
        "C5-cure",
        "`optimizer.zero_grad(set_to_none=True)` before evaluating",
        "report",
        change={"guard": "zero_grad"},
    ),
    Claim(
        "C6",
        "`eval_accumulation_steps=15`",
        "report",
        change={"accumulation": 15},
        code="args = TrainingArguments(..., eval_accumulation_steps=15)  # the smaller, the lower the peak",
    ),
    Claim(
        "C6-larger",
        "the larger `eval_accumulation_steps`, the lower the peak",
        "report",
        kind="statement",
        looks_at=ACCUMULATION,
        holds=ctc_facts.larger_is_lower,
    ),
    Claim(
        "C7",
        "`torch.cuda.empty_cache()` after evaluating",
        "report",
        change={"guard": "empty_cache"},
        needs_device="cuda",
        why_device="only a real device has a cache to empty",
    ),
    Claim(
        "C8",
        "the best cure: C1 together with a smaller evaluation batch",
        "report",
        change={"guard": "eval+no_grad", "call_batch": 2},
        today={"guard": "eval+no_grad", "eval_batch": 2},
        says_today="C1 together with `per_device_eval_batch_size=2` in the arguments",
    ),
    Claim(
        "accumulation-1",
        "`eval_accumulation_steps=1`",
        "threads",
        change={"accumulation": 1},
        code="args = TrainingArguments(..., eval_accumulation_steps=1)",
    ),
    Claim(
        "preprocess-argmax",
        "`preprocess_logits_for_metrics` that returns the argmax",
        "threads",
        change={"preprocess": "argmax"},
        code="""trainer = CTCTrainer(
    ...,
    preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1),
)""",
    ),
    Claim(
        "preprocess-argmax-metric",
        "that argmax leaves the metric alone on clips of differing lengths",
        "threads",
        kind="statement",
        looks_at=(RAGGED.but(preprocess="argmax"),),
        holds=ctc_facts.metric_stays,
        about_failure=False,
    ),
    Claim(
        "preprocess-argmax-and-labels",
        "`preprocess_logits_for_metrics` that returns `(pred_ids, labels)`",
        "threads",
        change={"preprocess": "argmax and labels"},
    ),
    Claim(
        "argmax-in-metrics",
        "take the argmax inside `compute_metrics`",
        "threads",
        base=REPORTED.but(metrics="count"),
        change={"metrics": "wer"},
    ),
    Claim(
        "batch-eval-metrics",
        "`batch_eval_metrics=True`, with a `compute_metrics` that takes `compute_result`",
        "threads",
        change={"batch_metrics": "yes"},
        code="args = TrainingArguments(..., batch_eval_metrics=True)  # compute_metrics(prediction, compute_result)",
    ),
    Claim("prediction-loss-only", "`prediction_loss_only=True`", "threads", change={"loss_only": "yes"}),
    Claim("eval-batch-2", "`per_device_eval_batch_size=2` in the arguments", "threads", change={"eval_batch": 2}),
    Claim(
        "fewer-examples",
        "evaluate fewer examples of the training set",
        "threads",
        change={"dataset": "part of the training set"},
        code='trainer.evaluate(trainer.train_dataset.select(range(200)), metric_key_prefix="train")',
    ),
    Claim("gc-collect", "`gc.collect()` before and after", "threads", change={"guard": "gc"}),
    Claim("no-concat", "`eval_do_concat_batches=False`", "threads", change={"concat": "no"}),
    Claim(
        "empty-cache-steps",
        "`torch_empty_cache_steps=1`",
        "threads",
        change={"empty_cache_steps": 1},
        needs_device="cuda",
        why_device="only a real device has a cache to empty",
    ),
    Claim("auto-find-batch-size", "`auto_find_batch_size=True`", "threads", change={"auto_find": "yes"}),
    Claim("checkpointing", "`gradient_checkpointing=True`", "threads", change={"checkpointing": "yes"}),
    Claim(
        "upgrade",
        "upgrade transformers to the newest release",
        "threads",
        pin={"transformers": "latest"},
        code="pip install --upgrade transformers",
    ),
)

_BY_A_CALLBACK = Clue(
    "a callback started the evaluation",
    0.15,
    frames=("transformers/trainer_callback.py:call_event", "transformers/trainer.py:evaluate"),
    lacking=-0.2,
)
CLUES = (
    _BY_A_CALLBACK,
    Clue(
        "the evaluation was joining the predictions it keeps",
        0.1,
        frames=("transformers/trainer.py:evaluation_loop", "transformers/trainer_pt_utils.py:nested_concat"),
    ),
    Clue("the training set is evaluated", 0.1, text=r"evaluate\([^\n]{0,200}train(?:ing)?_(?:data|set|ds)"),
)

FAILURE = Failure(
    id="callback-eval-oom",
    title="A callback that evaluates the training set: CUDA out of memory in that evaluation",
    summary=(
        "With `compute_metrics`, an evaluation keeps the logits of its whole set on the device until the last batch, "
        "and copies them all each time it joins a batch. A training set is large: what fits training and the "
        "evaluation set does not fit this. Modes, gradients and the batch size have little to do with it."
    ),
    symptoms=(
        Symptom(
            OUT_OF_MEMORY,
            "the device is full in an `evaluate` that `on_step_end` called",
            exception="OutOfMemoryError",
            message=r"out of memory",
            shows=ctc_facts.in_the_callback,
            clues=CLUES,
        ),
        Symptom(
            OUT_OF_MEMORY_ELSEWHERE,
            "the device is full elsewhere in the run",
            exception="OutOfMemoryError",
            message=r"out of memory",
            # Worth nothing: it is there to say what this lacks of the first symptom.
            clues=(replace(_BY_A_CALLBACK, weight=0.0, lacking=0.0),),
        ),
        Symptom(
            NO_BATCH_SIZE,
            "each smaller training batch ended in the same evaluation, until none was left",
            exception="RuntimeError",
            message=r"No executable batch size found",
        ),
        Symptom(
            NOT_EVALUATED,
            "the run ends well, and the callback's evaluation never happened",
            shows=ctc_facts.never_evaluated,
        ),
        Symptom(
            METRIC_GONE,
            "the callback's evaluation lacks a metric that it has without the cure",
            shows=ctc_facts.metric_is_gone,
        ),
        Symptom(
            METRIC_CHANGED,
            "the callback's evaluation gives another value than it does without the cure",
            shows=ctc_facts.metric_changed,
        ),
    ),
    factors=FACTORS,
    constraints=CONSTRAINTS,
    reported=REPORTED,
    reported_scope="trainer",
    trigger=Trigger(
        "the callback evaluates; predictions are kept, as `compute_metrics` needs them; and what training holds plus "
        "twice the predictions of the examples held at once is more than the capacity",
        predict,
    ),
    observe=_observe,
    probe=_probe,
    claims=CLAIMS,
    script=_script,
    sources=(
        Source("report", "a report with its answers: a CTC trainer whose callback evaluates the training set"),
        Source("threads", "advice in public threads", "https://github.com/huggingface/transformers/issues/7232"),
        Source(
            "accumulation", "predictions kept on the device", "https://github.com/huggingface/transformers/issues/8476"
        ),
        Source("preprocess", "the same with large logits", "https://github.com/huggingface/transformers/issues/25313"),
    ),
    full_scopes=(),
    budgeted=BUDGETED,
)
