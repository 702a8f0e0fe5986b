"""The law of an evaluation's peak: a `Trainer` evaluating a wav2vec2 CTC model on the emulated device.

Where it holds: models whose convolutions have multiples of 16 channels; oneDNN pads others to as many. A single example
whose features are at most 20,480 numbers is not given to oneDNN but unfolded, which is a stage of its own below.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from repro.memory.laws import BLOCK, FLOAT, LONG, Law, Term, parameter_bytes, rounded

Keeps = Literal["logits", "argmax", "argmax and labels", "nothing"]
UNFOLDED = 20_480
"""Numbers in a single example up to which torch convolves by unfolding (`use_mkldnn` in ATen's Convolution.cpp)."""


@dataclass(frozen=True)
class Wav2Vec2Sizes:
    """The sizes of a wav2vec2 CTC model without biases in its convolutions.

    `norm`: `group` after its first convolution, or `layer` after each. `masks` is whether SpecAugment is on
    (`mask_time_prob` or `mask_feature_prob`): it has a parameter of its own.
    """

    vocabulary: int
    hidden: int
    layers: int
    intermediate: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    position_kernel: int = 128
    position_groups: int = 16
    masks: bool = False
    norm: Literal["group", "layer"] = "group"

    def __post_init__(self) -> None:
        """Raise ValueError for sizes that no model can have."""
        numbers = (self.vocabulary, self.hidden, self.layers, self.intermediate, *self.channels, *self.kernels)
        if min(numbers) <= 0 or len({len(self.channels), len(self.kernels), len(self.strides)}) != 1:
            raise ValueError(f"sizes must be positive, and each convolution needs a kernel and a stride: {self}")

    def frames(self, samples: int) -> tuple[int, ...]:
        """Return the frames after each convolution for a clip of so many samples; the last is what CTC sees."""
        found = []
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            samples = (samples - kernel) // stride + 1
            found.append(samples)
        return tuple(found)

    def shapes(self) -> Iterator[tuple[int, ...]]:
        """Yield the shape of every parameter."""
        width, inner = self.hidden, self.intermediate
        if self.masks:
            yield (width,)
        before = 1
        for channels, kernel in zip(self.channels, self.kernels, strict=True):
            yield (channels, before, kernel)
            before = channels
        for channels in self.channels if self.norm == "layer" else self.channels[:1]:
            yield from ((channels,), (channels,))
        yield from ((before,), (before,), (width, before), (width,))
        yield from (
            (1, 1, self.position_kernel),
            (width, width // self.position_groups, self.position_kernel),
            (width,),
        )
        yield from ((width,), (width,))
        for _ in range(self.layers):
            for _ in range(4):
                yield from ((width, width), (width,))
            yield from ((width,), (width,), (inner, width), (inner,), (width, inner), (width,), (width,), (width,))
        yield from ((self.vocabulary, width), (self.vocabulary,))


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated and how. `samples` has the length of each clip, in the order of evaluation.

    `labels` is the length of each clip's labels, or of all. `keeps` is what the Trainer gathers of each batch: the
    logits when `compute_metrics` is given, what `preprocess_logits_for_metrics` makes of them, or nothing, without
    `compute_metrics`, with `prediction_loss_only` and with `batch_eval_metrics`. `accumulation` is
    `eval_accumulation_steps`; `attention_mask` whether clips come with one (32 bits a sample); `sees_temporaries`
    whether the meter sees inside operators; `held` is what the device holds all along besides the parameters.
    """

    model: Wav2Vec2Sizes
    samples: tuple[int, ...]
    batch: int
    labels: int | tuple[int, ...]
    keeps: Keeps = "logits"
    accumulation: int | None = None
    concatenates: bool = True
    sees_temporaries: bool = True
    attention_mask: bool = False
    held: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for an evaluation that cannot be."""
        lengths = self.labels if isinstance(self.labels, tuple) else (self.labels,)
        if not self.samples or min(self.samples) <= 0 or self.batch <= 0 or not lengths or min(lengths) <= 0:
            raise ValueError("an evaluation needs clips, and positive lengths and sizes")
        if isinstance(self.labels, tuple) and len(self.labels) != len(self.samples):
            raise ValueError(f"{len(self.samples)} clips have {len(self.labels)} labels")
        if self.accumulation is not None and self.accumulation <= 0:
            raise ValueError(f"accumulation is {self.accumulation}; it must be positive, or None")
        if min(self.model.frames(max(self.samples))) <= 0:
            raise ValueError("the clips are too short for the model's convolutions")


@dataclass(frozen=True)
class _Batch:
    """One batch, padded to its longest: examples, samples, frames after each convolution, labels."""

    examples: int
    samples: int
    frames: tuple[int, ...]
    labels: int

    @property
    def rows(self) -> int:
        """Frames of all examples."""
        return self.examples * self.frames[-1]


def evaluation_peak(run: Evaluation) -> Law:
    """Return the law of an evaluation's peak, above a device that was empty before the model was moved to it.

    Every batch has two moments that can be the highest: its forward pass, on top of what was kept so far; and the
    concatenation, when what was kept so far, the copy with the batch joined on, and the batch itself are all alive.
    """
    always = (_parameters(run.model), *run.held)
    best = Law("nowhere", ())
    kept = _Kept(run)
    previous = 0
    for number, batch in enumerate(_batches(run), 1):
        given, yields = _given(run, batch), _yields(run, batch)
        # The first batch's yield is what is kept, and a list keeps every batch's; only a joined copy leaves one over.
        over = Term("yield of the batch before, still named", f"B F {_wide(run)}", "1 batch", previous)
        lingering = (over,) if run.concatenates and kept.count > 1 else ()
        forward = Law(
            f"in the forward pass of batch {number}", (*always, given, *kept.terms(), *lingering, *_forward(run, batch))
        )
        best = max(best, forward, key=lambda law: law.bytes)
        if run.keeps == "nothing":
            continue
        old = kept.terms()
        kept.add(batch)
        if old and run.concatenates:
            joined = kept.terms("joined copy of what is kept")
            law = Law(f"in joining batch {number} to what is kept", (*always, given, yields, *old, *joined))
            best = max(best, law, key=lambda law: law.bytes)
        previous = yields.bytes
        if run.accumulation and number % run.accumulation == 0:
            kept = _Kept(run)
    return best


def _batches(run: Evaluation) -> Iterator[_Batch]:
    labels = run.labels if isinstance(run.labels, tuple) else (run.labels,) * len(run.samples)
    clips = iter(zip(run.samples, labels, strict=True))
    while part := list(itertools.islice(clips, run.batch)):
        longest = max(samples for samples, _ in part)
        yield _Batch(len(part), longest, run.model.frames(longest), max(length for _, length in part))


def _parameters(model: Wav2Vec2Sizes) -> Term:
    shapes = list(model.shapes())
    count = sum(map(math.prod, shapes))
    return Term("parameters", "4 N, in blocks", f"4 {count:,}", parameter_bytes(shapes))


def given(examples: int, samples: int, labels: int, *, attention_mask: bool, name: str = "batch given") -> Term:
    """Return what a batch takes that was moved to the device: sounds, a mask of 32 bits each, and labels."""
    sounds = (2 if attention_mask else 1) * rounded(examples * samples * FLOAT)
    numbers = f"{examples} {samples} {'8' if attention_mask else '4'} + {examples} {labels} 8"
    return Term(
        name,
        f"B S {'8' if attention_mask else '4'} + B T 8",
        numbers,
        sounds + rounded(examples * labels * LONG),
    )


def _given(run: Evaluation, batch: _Batch) -> Term:
    return given(batch.examples, batch.samples, batch.labels, attention_mask=run.attention_mask)


def _yields(run: Evaluation, batch: _Batch) -> Term:
    numbers = f"{batch.examples} {batch.frames[-1]} {_width(run)}"
    return Term("what the batch yields", f"B F {_wide(run)}", numbers, rounded(batch.rows * _width(run)))


def _forward(run: Evaluation, batch: _Batch) -> tuple[Term, ...]:
    """Return the terms of the highest of the forward pass's stages."""
    stages = [*_convolving(run, batch), *_encoding(run, batch), _losing(run, batch)]
    return max(stages, key=lambda stage: sum(term.bytes for term in stage))


def _convolving(run: Evaluation, batch: _Batch) -> Iterator[tuple[Term, ...]]:
    model, count = run.model, batch.examples
    outputs = [
        rounded(count * frames * width * FLOAT) for frames, width in zip(batch.frames, model.channels, strict=True)
    ]
    first = f"{count} {batch.frames[0]} {model.channels[0]}"
    if model.norm == "group":
        yield (Term("first convolution and its norm", "2 B F0 C 4", f"2 {first} 4", 2 * outputs[0]),)
    else:
        statistics = 2 * rounded(count * batch.frames[0] * FLOAT)
        copies = 3 if run.sees_temporaries else 2
        yield (
            Term(
                "first convolution, turned, and its norm with mean and deviation",
                f"{copies} B F0 C 4 + 2 B F0 4",
                f"{copies} {first} 4 + 2 {count} {batch.frames[0]} 4",
                copies * outputs[0] + statistics,
            ),
        )
    if run.sees_temporaries and len(outputs) > 1:
        yield (_second_convolution(model, batch, outputs),)


def _second_convolution(model: Wav2Vec2Sizes, batch: _Batch, outputs: list[int]) -> Term:
    count, kernel = batch.examples, model.kernels[1]
    first, second = f"{count} {batch.frames[0]} {model.channels[0]}", f"{count} {batch.frames[1]} {model.channels[1]}"
    # A layer norm leaves its output turned, and a convolution turns it back in a copy before anything else.
    inputs = 2 if model.norm == "layer" else 1
    if count == 1 and batch.frames[0] * model.channels[0] <= UNFOLDED:
        columns = rounded(model.channels[0] * kernel * batch.frames[1] * FLOAT)
        return Term(
            "second convolution: input, its unfolded columns, output",
            f"{inputs} B F0 C 4 + C K F1 4 + B F1 C 4",
            f"{inputs} {first} 4 + {model.channels[0]} {kernel} {batch.frames[1]} 4 + {second} 4",
            inputs * outputs[0] + columns + outputs[1],
        )
    weight = rounded(model.channels[0] * model.channels[1] * kernel * FLOAT)
    return Term(
        "second convolution: input, the operator's copies of input and weight, output",
        f"{inputs + 1} B F0 C 4 + C C K 4 + B F1 C 4",
        f"{inputs + 1} {first} 4 + {weight} + {second} 4",
        (inputs + 1) * outputs[0] + weight + outputs[1],
    )


def _encoding(run: Evaluation, batch: _Batch) -> Iterator[tuple[Term, ...]]:
    model, rows = run.model, batch.rows
    features = Term("features", "B F C 4", f"{rows} {model.channels[-1]} 4", rounded(rows * model.channels[-1] * FLOAT))
    if run.attention_mask:
        copies = 2 if run.sees_temporaries else 1
        size = rounded(batch.examples * batch.samples * LONG)
        formula = f"{copies} B S 8"
        numbers = f"{copies} {batch.examples} {batch.samples} 8"
        yield features, Term("attention mask, summed up in 64 bits", formula, numbers, copies * size)
    weight = rounded(model.hidden * model.hidden // model.position_groups * model.position_kernel * FLOAT)
    group = rounded(weight // model.position_groups) if run.sees_temporaries else 0
    yield (
        features,
        Term(
            "position convolution: its weight put together, a group's copy of it, input and output",
            "H H/G K 4 + H H/G K 4/G + 3 B F H 4",
            f"{weight} + {group} + 3 {rows} {model.hidden} 4",
            weight + group + 3 * rounded(rows * model.hidden * FLOAT),
        ),
    )
    yield (
        features,
        Term(
            "feed-forward: input, residual, and the widened states twice",
            "B F (3 H + 2 I) 4",
            f"{rows} (3 {model.hidden} + 2 {model.intermediate}) 4",
            3 * rounded(rows * model.hidden * FLOAT) + 2 * rounded(rows * model.intermediate * FLOAT),
        ),
    )


def _losing(run: Evaluation, batch: _Batch) -> tuple[Term, ...]:
    model, rows, paths = run.model, batch.rows, 2 * batch.labels + 1
    features = Term(
        "features and last hidden states",
        "B F (C + H) 4",
        f"{rows} ({model.channels[-1]} + {model.hidden}) 4",
        rounded(rows * model.channels[-1] * FLOAT) + rounded(rows * model.hidden * FLOAT),
    )
    logits = rounded(rows * model.vocabulary * FLOAT)
    loss = Term("logits and their log-softmax", "2 B F V 4", f"2 {rows} {model.vocabulary} 4", 2 * logits)
    alphas = Term("CTC's table", "B F (2 T + 1) 4", f"{rows} {paths} 4", rounded(rows * paths * FLOAT))
    if run.attention_mask:
        return features, loss, alphas
    size = rounded(batch.examples * batch.samples * LONG)
    mask = Term("attention mask made for the loss", "B S 8", f"{batch.examples} {batch.samples} 8", size)
    return features, loss, alphas, mask


class _Kept:
    """What the Trainer holds of the batches so far, padded to the longest of them."""

    def __init__(self, run: Evaluation) -> None:
        self._run = run
        # The labels once for `compute_metrics`, and once more where they are part of the predictions.
        self._copies = 2 if run.keeps == "argmax and labels" else 1
        self.count = self._examples = self._frames = self._labels = self._separate = 0

    def add(self, batch: _Batch) -> None:
        self.count += 1
        self._examples += batch.examples
        self._frames = max(self._frames, batch.frames[-1])
        self._labels = max(self._labels, batch.labels)
        # A list keeps the batch's own labels, under however many names, and its loss.
        self._separate += (
            rounded(batch.rows * _width(self._run)) + rounded(batch.examples * batch.labels * LONG) + BLOCK
        )

    def terms(self, name: str = "kept of the batches so far") -> tuple[Term, ...]:
        if not self.count:
            return ()
        if not self._run.concatenates:
            return (Term(name, "a list of batches", f"{self.count} batches", self._separate),)
        width, copies = _width(self._run), self._copies
        labels = copies * rounded(self._examples * self._labels * LONG)
        size = rounded(self._examples * self._frames * width) + labels + rounded(self._examples * FLOAT)
        times = f"{copies} " if copies > 1 else ""
        numbers = f"{self._examples} {self._frames} {width} + {times}{self._examples} {self._labels} 8"
        return (Term(name, f"n F {_wide(self._run)} + {times}n T 8, and n 4", numbers, size),)


def _width(run: Evaluation) -> int:
    return run.model.vocabulary * FLOAT if run.keeps == "logits" else LONG


def _wide(run: Evaluation) -> str:
    return "V 4" if run.keeps == "logits" else "8"
