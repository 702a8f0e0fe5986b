"""What an evaluation of a whole set keeps, from one batch of it. Pure arithmetic, no torch.

Follows the Trainer's loop: it keeps every output of every batch on the device, and joins each batch to those before by
making a new tensor of both. While it does, the old one is still there: that is the concatenation copy. Outputs of the
previous batch stay alive until the next forward pass has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from repro.forecast.timeline import rounded

LOSS_BYTES = 4
"""The Trainer keeps one float32 loss per example."""
COPY = "concatenation copy"
BATCH = "outputs of the batch"


@dataclass(frozen=True)
class Output:
    """One tensor that a batch gives: bytes per example as the model returns it, and as it is kept."""

    name: str
    row_bytes: int
    kept_row_bytes: int


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass of evaluation: its peak, everything resident included, and what that was, by kind."""

    peak_bytes: int
    by_kind: Mapping[str, int]
    inputs_bytes: int


@dataclass(frozen=True)
class EvaluationPeak:
    """The peak of evaluating a set, where it is reached, and what it consists of, in bytes.

    `where` is `forward pass` or `concatenation`. `kept_per_example` has what the set costs per example, by output.
    """

    peak_bytes: int
    where: str
    by_kind: Mapping[str, int]
    kept_per_example: Mapping[str, int]


@dataclass
class _Device:
    """What is alive, by kind, and the worst moment so far."""

    live: dict[str, int]
    peak_bytes: int = 0
    worst: dict[str, int] = field(default_factory=dict)
    where: str = ""

    def reach(self, where: str, extra: Mapping[str, int]) -> None:
        top = sum(self.live.values()) + sum(extra.values())
        if top > self.peak_bytes:
            self.peak_bytes, self.where, self.worst = top, where, dict(self.live)
            for kind, size in extra.items():
                self.worst[kind] = self.worst.get(kind, 0) + size


def evaluate(
    examples: int,
    batch: int,
    forward: Callable[[int], ForwardPass],
    resident: Mapping[str, int],
    outputs: tuple[Output, ...],
    label_row_bytes: int,
    *,
    keep: str = "outputs",
    accumulation: int = 0,
    concatenate: bool = True,
) -> EvaluationPeak:
    """Go through the loop. `forward` gives the pass of a batch of so many examples; `resident` is what is always there.

    `keep` and the rest are as in `repro.forecast.setting.Setting`.
    """
    keeps_set = keep in ("outputs", "argmax")
    kept_rows = {output.name: output.kept_row_bytes for output in outputs} if keeps_set else {}
    if keeps_set and label_row_bytes:
        kept_rows["labels"] = label_row_bytes
    device = _Device(dict(resident))
    kept: dict[str, int] = {}
    rows = labels_left = 0
    for step, first in enumerate(range(0, examples, batch)):
        size = min(batch, examples - first)
        passed = forward(size)
        # The loop's variable lets go of the previous inputs when it gets new ones; their labels are held by another.
        _set(device, {"inputs": labels_left})
        device.reach("forward pass", {k: v for k, v in _above(passed, resident).items() if v})
        raw = sum(rounded(size * output.row_bytes) for output in outputs) if keep != "nothing" else 0
        made = sum(rounded(size * o.kept_row_bytes) for o in outputs if o.kept_row_bytes != o.row_bytes)
        is_first, rows = not rows, rows + size
        _set(device, {"inputs": passed.inputs_bytes, BATCH: raw})
        if keeps_set and made:
            device.reach("forward pass", {BATCH: made})
            _set(device, {BATCH: sum(rounded(size * output.kept_row_bytes) for output in outputs)})
        _add(device, kept, {"losses": LOSS_BYTES}, rows if concatenate else size, is_first, concatenate)
        if kept_rows:
            by_output = {name: row for name, row in kept_rows.items() if name != "labels"}
            _add(device, kept, by_output, rows if concatenate else size, is_first, concatenate)
            labels = {name: row for name, row in kept_rows.items() if name == "labels"}
            _add(device, kept, labels, rows if concatenate else size, is_first, concatenate)
        labels_left = rounded(size * label_row_bytes) if keep != "nothing" else 0
        if is_first or not concatenate:
            # The first batch is kept as it is, the same storage: not counted twice.
            _set(device, {BATCH: 0 if kept_rows else raw})
            if "labels" in kept_rows:
                labels_left = 0
                _set(device, {"inputs": passed.inputs_bytes - rounded(size * label_row_bytes)})
        if keep == "batch":
            labels_left = 0
            _set(device, {BATCH: 0})
        elif accumulation and (step + 1) % accumulation == 0:
            kept.clear()
            rows = labels_left = 0
            device.live = dict(resident)
    return EvaluationPeak(
        peak_bytes=device.peak_bytes,
        where=device.where,
        by_kind=device.worst,
        kept_per_example={**kept_rows, "losses": LOSS_BYTES},
    )


def _above(passed: ForwardPass, resident: Mapping[str, int]) -> dict[str, int]:
    return {kind: size - resident.get(kind, 0) for kind, size in passed.by_kind.items()}


def _set(device: _Device, sizes: Mapping[str, int]) -> None:
    device.live.update(sizes)


def _add(
    device: _Device, kept: dict[str, int], rows: Mapping[str, int], count: int, is_first: bool, concatenate: bool
) -> None:
    """Add a batch to a container: all outputs get their new tensors before the first old one goes."""
    joined = {name: rounded(row * count) for name, row in rows.items()}
    if is_first or not concatenate:
        for name, size in joined.items():
            kept[name] = kept.get(name, 0) + size
    else:
        device.reach("concatenation", {COPY: sum(joined.values())})
        kept.update(joined)
    _set(device, {f"kept: {name}": kept[name] for name in joined})
