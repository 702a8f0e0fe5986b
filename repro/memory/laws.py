"""Laws: what a peak is made of, as formulas over sizes. Standard library only; the tests hold them against the meter.

They describe the emulated device (fp32 on the CPU, sizes rounded up to blocks), and a `Trainer` evaluating a wav2vec2
CTC model. Closed forms are derived from what the code does; what is fitted to measurements says so.

Where they hold: convolutions large enough that torch hands them to oneDNN, which it does not for a single example with
at most 20,480 numbers in the input. Below that, torch unfolds the input, and the law is some percent too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

BLOCK = 512
FLOAT, LONG = 4, 8

Provenance = Literal["closed form", "fitted"]
Keeps = Literal["logits", "argmax", "nothing"]


@dataclass(frozen=True)
class Term:
    """One part of a peak: its formula with names, the same with numbers, and its bytes."""

    name: str
    formula: str
    numbers: str
    bytes: int
    provenance: Provenance = "closed form"


@dataclass(frozen=True)
class Law:
    """A peak as a sum of terms, and where in the run it is reached."""

    where: str
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        """The peak in bytes."""
        return sum(term.bytes for term in self.terms)

    def __str__(self) -> str:
        lines = [f"peak {self.bytes:,} bytes, reached {self.where}; the sum of:"]
        lines += [
            f"  {term.bytes:>16,}  {term.name} = {term.formula} = {term.numbers}"
            + (" (fitted)" if term.provenance == "fitted" else "")
            for term in self.terms
        ]
        return "\n".join(lines)


def rounded(nbytes: int) -> int:
    """Round up to whole blocks, as the device does."""
    return -(-nbytes // BLOCK) * BLOCK


@dataclass(frozen=True)
class Wav2Vec2Sizes:
    """The sizes of a wav2vec2 CTC model: group norm after its first convolution, and no biases in any.

    `masks` is whether SpecAugment is on (`mask_time_prob` or `mask_feature_prob`): it has a parameter of its own.
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
        yield from ((self.channels[0],), (self.channels[0],))
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


def parameter_bytes(shapes: Iterable[Sequence[int]], itemsize: int = FLOAT) -> int:
    """Return the bytes of parameters of these shapes; equally those of their gradients."""
    return sum(rounded(math.prod(shape) * itemsize) for shape in shapes)


def adamw_bytes(shapes: Iterable[Sequence[int]], itemsize: int = FLOAT) -> int:
    """Return the bytes of AdamW's state: two moments for each parameter, and a step count in a block of its own."""
    return sum(2 * rounded(math.prod(shape) * itemsize) + BLOCK for shape in shapes)


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated and how. `samples` has the length of each clip, in the order of evaluation.

    `keeps` is what the Trainer gathers of each batch: the logits when `compute_metrics` is given, their argmax when
    `preprocess_logits_for_metrics` takes it, nothing without `compute_metrics` or with `prediction_loss_only`.
    `accumulation` is `eval_accumulation_steps`; `sees_temporaries` whether the meter sees inside operators.
    """

    model: Wav2Vec2Sizes
    samples: tuple[int, ...]
    batch: int
    label_length: int
    keeps: Keeps = "logits"
    accumulation: int | None = None
    concatenates: bool = True
    sees_temporaries: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError for an evaluation that cannot be."""
        if not self.samples or min(self.samples) <= 0 or self.batch <= 0 or self.label_length <= 0:
            raise ValueError("an evaluation needs clips, and positive lengths and sizes")
        if self.accumulation is not None and self.accumulation <= 0:
            raise ValueError(f"accumulation is {self.accumulation}; it must be positive, or None")
        if min(self.model.frames(max(self.samples))) <= 0:
            raise ValueError("the clips are too short for the model's convolutions")


def evaluation_peak(run: Evaluation) -> Law:
    """Return the law of an evaluation's peak, above a device that was empty before the model was moved to it.

    Every batch has two moments that can be the highest: its forward pass, on top of what was kept so far; and the
    concatenation, when what was kept so far, the copy with the batch joined on, and the batch itself are all alive.
    """
    model = run.model
    parameters = _parameters(model)
    best = Law("nowhere", ())
    kept = _Kept(run)
    previous = 0
    for number, clips in enumerate(_batches(run), 1):
        longest, count = max(clips), len(clips)
        frames = model.frames(longest)[-1]
        width = _width(run)
        gathered = rounded(count * frames * width)
        given = _given(run, count, longest)
        # The first batch's yield is what is kept, and a list keeps every batch's; only a joined copy leaves one over.
        lingers = run.concatenates and kept.count > 1
        lingering = (
            (Term("yield of the batch before, still named", f"B F {_wide(run)}", "1 batch", previous),)
            if lingers
            else ()
        )
        forward = Law(
            f"in the forward pass of batch {number}",
            (parameters, given, *kept.terms(), *lingering, *_forward(run, count, longest)),
        )
        best = max(best, forward, key=lambda law: law.bytes)
        if run.keeps == "nothing":
            continue
        batch = Term("what the batch yields", f"B F {_wide(run)}", f"{count} {frames} {width}", gathered)
        old = kept.terms()
        kept.add(count, frames)
        if old and run.concatenates:
            joined = kept.terms("joined copy of what is kept")
            law = Law(f"in joining batch {number} to what is kept", (parameters, given, batch, *old, *joined))
            best = max(best, law, key=lambda law: law.bytes)
        previous = gathered
        if run.accumulation and number % run.accumulation == 0:
            kept = _Kept(run)
    return best


def _batches(run: Evaluation) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(run.samples), run.batch):
        yield run.samples[start : start + run.batch]


def _parameters(model: Wav2Vec2Sizes) -> Term:
    shapes = list(model.shapes())
    count = sum(map(math.prod, shapes))
    return Term("parameters", "4 N, in blocks", f"4 {count:,}", parameter_bytes(shapes))


def _given(run: Evaluation, count: int, samples: int) -> Term:
    size = rounded(count * samples * FLOAT) + rounded(count * run.label_length * LONG)
    return Term("batch given", "B S 4 + B T 8", f"{count} {samples} 4 + {count} {run.label_length} 8", size)


def _forward(run: Evaluation, count: int, samples: int) -> tuple[Term, ...]:
    """Return the terms of the highest of the forward pass's stages."""
    model = run.model
    frames = model.frames(samples)
    layers = [rounded(count * size * width * FLOAT) for size, width in zip(frames, model.channels, strict=True)]
    stages: list[tuple[Term, ...]] = [
        (
            Term(
                "first convolution and its norm",
                "2 B F0 C 4",
                f"2 {count} {frames[0]} {model.channels[0]} 4",
                2 * layers[0],
            ),
        )
    ]
    if run.sees_temporaries and len(layers) > 1:
        rows0 = f"{count} {frames[0]} {model.channels[0]}"
        weight = rounded(model.channels[0] * model.channels[1] * model.kernels[1] * FLOAT)
        stages.append(
            (
                Term(
                    "second convolution: input, the operator's copies of input and weight, output",
                    "2 B F0 C 4 + C C K 4 + B F1 C 4",
                    f"2 {rows0} 4 + {weight} + {count} {frames[1]} {model.channels[1]} 4",
                    2 * layers[0] + weight + layers[1],
                ),
            )
        )
    rows, vocabulary = count * frames[-1], model.vocabulary
    features = Term(
        "features and last hidden states",
        "B F (C + H) 4",
        f"{rows} ({model.channels[-1]} + {model.hidden}) 4",
        rounded(rows * model.channels[-1] * FLOAT) + rounded(rows * model.hidden * FLOAT),
    )
    loss = Term(
        "logits and their log-softmax", "2 B F V 4", f"2 {rows} {vocabulary} 4", 2 * rounded(rows * vocabulary * FLOAT)
    )
    paths = 2 * run.label_length + 1
    alphas = Term("CTC's table", "B F (2 T + 1) 4", f"{rows} {paths} 4", rounded(rows * paths * FLOAT))
    mask = Term("attention mask made for the loss", "B S 8", f"{count} {samples} 8", rounded(count * samples * LONG))
    stages.append((features, loss, alphas, mask))
    weight = rounded(model.hidden * model.hidden // model.position_groups * model.position_kernel * FLOAT)
    group = rounded(weight // model.position_groups) if run.sees_temporaries else 0
    position = Term(
        "position convolution: its weight put together, a group's copy of it, input and output",
        "H H/G K 4 + H H/G K 4/G + 3 B F H 4",
        f"{weight} + {group} + 3 {rows} {model.hidden} 4",
        weight + group + 3 * rounded(rows * model.hidden * FLOAT),
    )
    stages.append((Term("features", "B F C 4", f"{rows} {model.channels[-1]} 4", layers[-1]), position))
    inner = Term(
        "feed-forward: input, residual, and the widened states twice",
        "B F (3 H + 2 I) 4",
        f"{rows} (3 {model.hidden} + 2 {model.intermediate}) 4",
        3 * rounded(rows * model.hidden * FLOAT) + 2 * rounded(rows * model.intermediate * FLOAT),
    )
    stages.append((Term("features", "B F C 4", f"{rows} {model.channels[-1]} 4", layers[-1]), inner))
    return max(stages, key=lambda stage: sum(term.bytes for term in stage))


class _Kept:
    """What the Trainer holds of the batches so far, padded to the longest of them."""

    def __init__(self, run: Evaluation) -> None:
        self._run = run
        self.count = self._examples = self._frames = self._separate = 0

    def add(self, examples: int, frames: int) -> None:
        self.count += 1
        self._examples += examples
        self._frames = max(self._frames, frames)
        self._separate += rounded(examples * frames * _width(self._run)) + rounded(
            examples * self._run.label_length * LONG
        )

    def terms(self, name: str = "kept of the batches so far") -> tuple[Term, ...]:
        if not self.count:
            return ()
        if not self._run.concatenates:
            return (Term(name, "a list of batches", f"{self.count} batches", self._separate),)
        labels = rounded(self._examples * self._run.label_length * LONG)
        width = _width(self._run)
        size = rounded(self._examples * self._frames * width)
        numbers = f"{self._examples} {self._frames} {width} + {self._examples} {self._run.label_length} 8"
        return (Term(name, f"n F {_wide(self._run)} + n T 8", numbers, size + labels),)


def _width(run: Evaluation) -> int:
    return LONG if run.keeps == "argmax" else run.model.vocabulary * FLOAT


def _wide(run: Evaluation) -> str:
    return "8" if run.keeps == "argmax" else "V 4"


def training_state(shapes: Sequence[Sequence[int]]) -> Law:
    """Return what a training run holds between steps with AdamW, exact to the byte. Every parameter has a gradient."""
    count = sum(map(math.prod, shapes))
    return Law(
        "between backward and the next `zero_grad`",
        (
            Term("parameters", "4 N, in blocks", f"4 {count:,}", parameter_bytes(shapes)),
            Term("gradients", "4 N, in blocks", f"4 {count:,}", parameter_bytes(shapes)),
            Term("AdamW's state", "8 N, in blocks, and a block a parameter", f"8 {count:,}", adamw_bytes(shapes)),
        ),
    )


@dataclass(frozen=True)
class Fit:
    """A straight line through measured peaks: bytes = slope x size + rest, and the largest relative error."""

    slope: float
    rest: float
    worst: float

    def term(self, frames: int, examples: int) -> Term:
        """Return the activations of a training step as a term."""
        size = round(self.slope * frames * examples)
        return Term("activations", "slope F B", f"{self.slope:.1f} {frames} {examples}", size, "fitted")


def fit(measured: Sequence[tuple[int, int]]) -> Fit:
    """Fit a line by least squares to pairs of size (frames times examples) and bytes.

    Raises ValueError with fewer than three different sizes: two points always lie on a line.
    """
    if len({size for size, _ in measured}) < 3:
        raise ValueError("a fit needs peaks at three sizes or more")
    mean_size = sum(size for size, _ in measured) / len(measured)
    mean_bytes = sum(nbytes for _, nbytes in measured) / len(measured)
    spread = sum((size - mean_size) ** 2 for size, _ in measured)
    slope = sum((size - mean_size) * (nbytes - mean_bytes) for size, nbytes in measured) / spread
    rest = mean_bytes - slope * mean_size
    worst = max(abs(slope * size + rest - nbytes) / nbytes for size, nbytes in measured)
    return Fit(slope, rest, worst)
