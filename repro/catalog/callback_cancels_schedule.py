"""A callback that evaluates while training: scheduled evaluations and loss logs vanish without an error."""

from __future__ import annotations

from collections.abc import Sequence

from repro.vocabulary import (
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

BOTH_LOST = "evaluations and loss logs lost"
EVALUATION_LOST = "evaluations lost"
LOG_LOST = "loss logs lost"
VALUES_CHANGED = "logged losses change"

FACTORS = (
    Factor(
        "callback",
        (
            "off",
            "every step",
            "when should_evaluate",
            "when should_log",
            "every epoch",
            "after an evaluation",
            "after a log",
        ),
        "when it evaluates: in `on_step_end` (always, or if the flag is set), `on_epoch_end`, `on_evaluate`, `on_log`",
        ("trainer",),
    ),
    Factor(
        "control",
        ("returns nothing", "returns it", "returns the copy", "returns a late copy", "restores the flags"),
        "what the callback does with `control`; a copy is made before the evaluation, a late one after it",
        ("trainer",),
    ),
    Factor(
        "dataset",
        ("training set", "evaluation set"),
        "what it evaluates; the training set under a prefix of its own",
        ("trainer",),
    ),
    Factor("method", ("evaluate", "predict"), "the Trainer's method it calls", ("trainer",)),
    Factor("strategy", ("steps", "epoch", "no"), "`eval_strategy`", ("trainer",)),
    Factor("eval_steps", (2, 3), "`eval_steps`", ("trainer",)),
    Factor("logging_steps", (2, 1, 3, 4), "`logging_steps`", ("trainer",)),
    Factor("best_model", ("no", "yes"), "`load_best_model_at_end`", ("trainer",)),
)

CONSTRAINTS = (
    Constraint(
        "without the callback there is nothing to write in it",
        lambda c: (
            c["callback"] != "off"
            or (c["control"], c["dataset"], c["method"]) == ("returns nothing", "training set", "evaluate")
        ),
    ),
    Constraint(
        "steps between evaluations matter where steps decide",
        lambda c: c["strategy"] == "steps" or c["eval_steps"] == 2,
    ),
    Constraint("the best model is chosen by evaluations", lambda c: c["best_model"] == "no" or c["strategy"] != "no"),
    Constraint(
        "a callback that waits for evaluations needs some",
        lambda c: c["strategy"] != "no" or c["callback"] not in ("when should_evaluate", "after an evaluation"),
    ),
)

STEPS_PER_EPOCH, STEPS = 3, 6
EVALUATE, LOG = "should_evaluate", "should_log"


def predict(configuration: Configuration, scope: Scope, mechanism: Mechanism) -> str | None:
    """Say what becomes of the schedule, by going through the run's events with the flags that a release clears.

    A callback is passed the Trainer's own control. Evaluating logs, and whoever logs or evaluates clears the flag that
    asks for it, on that object: what was due at this event is then taken for done. Flags survive only where the
    callback puts back what they were. An evaluation by the callback is missed by nobody if it wrote the same row.
    """
    del scope
    lost = _Schedule(configuration, mechanism).lost()
    if EVALUATE in lost and LOG in lost:
        return BOTH_LOST
    if EVALUATE in lost:
        return EVALUATION_LOST
    return LOG_LOST if LOG in lost else TRAINS


class _Schedule:
    """The events of a run in which something is due, and what the callback makes of them."""

    def __init__(self, configuration: Configuration, mechanism: Mechanism) -> None:
        self.configuration = configuration
        self.callback = str(configuration["callback"])
        kept = configuration["control"] in ("returns the copy", "restores the flags")
        self.clears = set() if kept else set(mechanism["cleared_by"][configuration["method"]])
        same_row = configuration["dataset"] == "evaluation set" and configuration["method"] == "evaluate"
        self.replaces = {EVALUATE} if same_row else set()

    def lost(self) -> set[str]:
        """Return the flags that asked in vain at least once."""
        found: set[str] = set()
        for step in range(1, STEPS + 1):
            found |= self._lost_at("step", self._due_after_step(step))
            if step % STEPS_PER_EPOCH == 0:
                found |= self._lost_at("epoch", {EVALUATE} if self.configuration["strategy"] == "epoch" else set())
        return found

    def _due_after_step(self, step: int) -> set[str]:
        due = {LOG} if step % int(self.configuration["logging_steps"]) == 0 else set()
        if self.configuration["strategy"] == "steps" and step % int(self.configuration["eval_steps"]) == 0:
            due.add(EVALUATE)
        return due

    def _lost_at(self, event: str, due: set[str]) -> set[str]:
        by_event = {
            "every step": event == "step",
            "when should_evaluate": event == "step" and EVALUATE in due,
            "when should_log": event == "step" and LOG in due,
            "every epoch": event == "epoch",
        }
        if by_event.get(self.callback):
            return (due & self.clears) - self.replaces
        if self.callback == "after a log" and LOG in due:
            # The log itself is written by then; the evaluation comes next, if its flag is still set.
            return (due & self.clears & {EVALUATE}) - self.replaces
        return set()


def _best_model_is_lost(facts: Sequence[Facts]) -> bool | None:
    """Look whether the run that lost its evaluations also lost its best model."""
    if not facts[0].get("lost_evaluations"):
        return None
    return bool(facts[0]["best_lost"])


def _reshuffles(facts: Sequence[Facts]) -> bool | None:
    """Look whether training went on with other data after the callback's evaluations than it does without them."""
    if not facts[0].get("callback_evaluations"):
        return None
    return facts[0]["reshuffled_at"] is not None


def _observe(trial: Trial) -> Facts:
    from repro.observe import ctc_schedule

    return ctc_schedule.observe(trial.configuration)


def _probe() -> Mechanism:
    from repro.observe import ctc_schedule

    return ctc_schedule.probe()


def _script(configuration: Configuration) -> str:
    from repro.script import ctc_schedule

    return ctc_schedule.script(configuration)


PLAIN = Configuration({factor.name: factor.default for factor in FACTORS})
REPORTED = PLAIN.but(callback="when should_evaluate")

CLAIMS = (
    Claim(
        "return-copy",
        "copy `control` before evaluating, and return the copy",
        "report",
        change={"control": "returns the copy"},
        code="""def on_step_end(self, args, state, control, **kwargs):
    if control.should_evaluate:
        as_it_was = copy.deepcopy(control)
        self.trainer.evaluate(self.trainer.train_dataset, metric_key_prefix="train")
        return as_it_was""",
    ),
    Claim(
        "restore-flags",
        "put the flags back on `control` after evaluating",
        "mechanism",
        change={"control": "restores the flags"},
        code="""as_it_was = dict(vars(control))
self.trainer.evaluate(self.trainer.train_dataset, metric_key_prefix="train")
vars(control).update(as_it_was)""",
    ),
    Claim("return-control", "return `control` from the callback", "mechanism", change={"control": "returns it"}),
    Claim(
        "late-copy",
        "return a copy of `control` that is made after evaluating",
        "mechanism",
        change={"control": "returns a late copy"},
    ),
    Claim(
        "predict",
        "call `predict()` instead, which logs nothing",
        "mechanism",
        change={"method": "predict"},
        code="""metrics = self.trainer.predict(self.trainer.train_dataset, metric_key_prefix="train").metrics
# log them yourself, after training or with your tracker: `trainer.log` would clear the flag for logs""",
    ),
    Claim("every-step", "evaluate at every step", "mechanism", change={"callback": "every step"}),
    Claim(
        "on-epoch-end",
        "evaluate in `on_epoch_end`",
        "mechanism",
        change={"callback": "every epoch"},
        code="def on_epoch_end(self, args, state, control, **kwargs): ...  # with eval_strategy='steps'",
    ),
    Claim(
        "on-epoch-end-by-epoch",
        "evaluate in `on_epoch_end` with `eval_strategy='epoch'`",
        "mechanism",
        change={"callback": "every epoch", "strategy": "epoch"},
    ),
    Claim(
        "on-evaluate",
        "evaluate a second time in `on_evaluate`, keeping it from calling itself",
        "mechanism",
        change={"callback": "after an evaluation"},
        code="""def on_evaluate(self, args, state, control, **kwargs):
    if not self.busy:
        self.busy = True
        self.trainer.evaluate(self.trainer.train_dataset, metric_key_prefix="train")
        self.busy = False""",
    ),
    Claim("on-log", "evaluate in `on_log`", "mechanism", change={"callback": "after a log"}),
    Claim(
        "same-set",
        "evaluate the evaluation set under the usual prefix",
        "mechanism",
        change={"dataset": "evaluation set"},
    ),
    Claim(
        "other-logging-steps",
        "log at other steps than those with an evaluation",
        "mechanism",
        change={"logging_steps": 4, "eval_steps": 3},
    ),
    Claim(
        "best-model",
        "with the evaluations goes the best model: none is known at the end of training",
        "mechanism",
        kind="statement",
        looks_at=(REPORTED.but(best_model="yes"),),
        holds=_best_model_is_lost,
    ),
    Claim(
        "reshuffles",
        "evaluating in a callback changes the order in which training data comes: it draws random numbers",
        "mechanism",
        kind="statement",
        looks_at=(REPORTED.but(control="returns the copy"),),
        holds=_reshuffles,
        about_failure=False,
    ),
    Claim(
        "upgrade",
        "upgrade transformers to the newest release",
        "mechanism",
        pin={"transformers": "latest"},
        code="pip install --upgrade transformers",
    ),
)

FAILURE = Failure(
    id="callback-cancels-schedule",
    title="A callback that evaluates: scheduled evaluations and loss logs vanish without an error",
    summary=(
        "`trainer.evaluate()` inside a callback ends with `on_log` and `on_evaluate`, which clear `should_log` and "
        "`should_evaluate` on the very control object whose flags the Trainer reads next. What was due at that step is "
        "taken for done: no row of `log_history`, no best model, no error."
    ),
    symptoms=(
        Symptom(
            BOTH_LOST,
            "steps at which the run without the callback logs `eval_loss`, and some with `loss`, have no such row",
            shows=lambda facts: bool(facts["lost_evaluations"] and facts["lost_logs"]),
        ),
        Symptom(
            EVALUATION_LOST,
            "steps at which the run without the callback logs `eval_loss` have no such row",
            shows=lambda facts: bool(facts["lost_evaluations"]),
        ),
        Symptom(
            LOG_LOST,
            "steps at which the run without the callback logs `loss` have no such row",
            shows=lambda facts: bool(facts["lost_logs"]),
        ),
        Symptom(
            VALUES_CHANGED,
            "every row is there, and a loss in it is not what it is without the callback, on the same data",
            shows=lambda facts: bool(facts["changed"]),
        ),
    ),
    factors=FACTORS,
    constraints=CONSTRAINTS,
    reported=REPORTED,
    reported_scope="trainer",
    trigger=Trigger(
        "a callback evaluates in an event after which something is due, the release clears the flag for it on the "
        "control it passed, and the callback does not put the flag back",
        predict,
    ),
    observe=_observe,
    probe=_probe,
    claims=CLAIMS,
    script=_script,
    sources=(
        Source("report", "a report with its answers: a CTC trainer whose callback evaluates the training set"),
        Source("mechanism", "what the mechanism itself suggests trying"),
    ),
    full_scopes=(),
)
