"""Laws: what a peak is made of, as formulas over sizes. Standard library only; the tests hold them against the meter.

They describe the emulated device (fp32 on the CPU, sizes rounded up to blocks). Closed forms are derived from what the
code does; what is fitted to measurements says so. `repro.memory.evaluation_law` has that of an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

BLOCK = 512
FLOAT, LONG = 4, 8

Provenance = Literal["closed form", "fitted"]


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

    @property
    def short(self) -> str:
        """The peak, where it is reached and what of, in one line."""
        return f"{self.bytes:,} bytes {self.where}: " + " + ".join(term.name for term in self.terms)

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


def parameter_bytes(shapes: Iterable[Sequence[int]], itemsize: int = FLOAT) -> int:
    """Return the bytes of parameters of these shapes; equally those of their gradients."""
    return sum(rounded(math.prod(shape) * itemsize) for shape in shapes)


def adamw_bytes(shapes: Iterable[Sequence[int]], itemsize: int = FLOAT) -> int:
    """Return the bytes of AdamW's state: two moments for each parameter, and a step count in a block of its own."""
    return sum(2 * rounded(math.prod(shape) * itemsize) + BLOCK for shape in shapes)


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
        size = round(self.slope * frames * examples + self.rest)
        numbers = f"{self.slope:.1f} {frames} {examples} + {self.rest:,.0f}"
        return Term("activations", "slope F B + rest", numbers, size, "fitted")


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
