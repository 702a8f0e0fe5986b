"""The law of a run whose callback evaluates, on the emulated device: what its peak is made of. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from repro.memory import laws
from repro.memory.evaluation_law import Evaluation, Keeps, evaluation_peak, given
from repro.memory.laws import BLOCK, FLOAT, Fit, Law, Term
from repro.observe.ctc_workload import EMULATED, Workload
from repro.vocabulary import Configuration

ACTIVATIONS: dict[tuple[str, str], tuple[Fit, Fit]] = {
    ("equal", "no"): (Fit(2041.6, 13_995, 0.0004), Fit(2681.6, 12_971, 0.0003)),
    ("equal", "yes"): (Fit(670.4, 26_197, 0.0005), Fit(1440.0, 8_704, 0.0)),
    ("ragged", "no"): (Fit(2368.0, 10_069, 0.0008), Fit(3008.0, 9_045, 0.0006)),
    ("ragged", "yes"): (Fit(752.0, 24_917, 0.001), Fit(1736.0, 32_939, 0.0009)),
}
"""What a training step holds for its backward, by lengths of the clips (ragged ones have a mask in attention) and
checkpointing: in the loss's backward, and in its forward. Fitted to training batches of 8, 12 and 16 with transformers
5.24; a test fits them again."""


def law(configuration: Configuration, *, evaluates: bool, workload: Workload = EMULATED) -> Law:
    """Return the law of a run's peak. `evaluates` is whether the callback does.

    Raises ValueError for a run that never begins to evaluate, and ImportError for ragged clips without numpy.
    """
    if evaluates and configuration["call_batch"] != "unset":
        raise ValueError("`evaluate` has no argument `per_device_eval_batch_size`: the run ends before its peak")
    found = [*training(configuration, workload)]
    found.append(_evaluation(configuration, workload, "evaluation set", "in the evaluation that is due"))
    if evaluates:
        dataset = str(configuration["dataset"])
        found.append(_evaluation(configuration, workload, dataset, "in the callback's evaluation"))
    return max(found, key=lambda each: each.bytes)


def _state(configuration: Configuration, workload: Workload) -> tuple[Term, Term, Term, Term]:
    """Return what is on the device all along once an optimizer has stepped; the parameters come first."""
    parameters, _, optimizer = laws.training_state(
        list(workload.sizes(int(configuration["vocabulary"])).shapes())
    ).terms
    samples, labels = workload.longest(str(configuration["lengths"]))
    batch = given(workload.train_batch, samples, labels, attention_mask=True, name="training batch")
    return parameters, optimizer, batch, Term("loss, norm and counts of the step", "4 blocks", f"4 {BLOCK}", 4 * BLOCK)


def training(configuration: Configuration, workload: Workload = EMULATED) -> Iterator[Law]:
    """Yield the laws of the two moments of which one is a training step's highest: its loss's backward, and forward."""
    lengths, vocabulary = str(configuration["lengths"]), int(configuration["vocabulary"])
    sizes = workload.sizes(vocabulary)
    examples, frames, width = workload.train_batch, sizes.frames(workload.longest(lengths)[0])[-1], sizes.vocabulary
    backward, forward = ACTIVATIONS[lengths, str(configuration["checkpointing"])]
    for where, fit, copies, name in (
        ("in the backward of a training step's loss", backward, 4, "log-softmax, and gradients of logits and of it"),
        ("in the forward of a training step's loss", forward, 1, "logits"),
    ):
        size = copies * laws.rounded(examples * frames * width * FLOAT)
        logits = Term(name, f"{copies} B F V 4", f"{copies} {examples} {frames} {width} 4", size)
        yield Law(where, (*_state(configuration, workload), logits, fit.term(frames, examples)))


def _evaluation(configuration: Configuration, workload: Workload, dataset: str, within: str) -> Law:
    accumulation, batch = configuration["accumulation"], configuration["eval_batch"]
    own = dataset == "evaluation set"
    size = workload.train_set if dataset == "training set" else workload.small_set
    # A part of the training set is its first clips.
    whole = workload.small_set if own else workload.train_set
    clips = list(workload.clips(str(configuration["lengths"]), whole, seed=1 if own else 0))[:size]
    found = evaluation_peak(
        Evaluation(
            model=workload.sizes(int(configuration["vocabulary"])),
            samples=tuple(samples for samples, _ in clips),
            labels=tuple(labels for _, labels in clips),
            batch=8 if batch == "unset" else int(batch),
            keeps=_keeps(configuration),
            accumulation=None if accumulation == "unset" else int(accumulation),
            concatenates=configuration["concat"] == "yes",
            attention_mask=True,
            held=_state(configuration, workload)[1:],
        )
    )
    return Law(f"{within}, {found.where}", found.terms)


def _keeps(configuration: Configuration) -> Keeps:
    if configuration["metrics"] == "none" or "yes" in (configuration["loss_only"], configuration["batch_metrics"]):
        return "nothing"
    kept: dict[str, Keeps] = {"none": "logits", "argmax": "argmax", "argmax and labels": "argmax and labels"}
    return kept[str(configuration["preprocess"])]
