"""The twin comparison: gradients, element by element, against the same run without the feature under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

Gradients = Mapping[str, "torch.Tensor | None"]
"""By parameter name; None where a parameter that requires a gradient has none."""

TOLERANCES: Mapping[str, tuple[float, float]] = {"fp32": (1e-5, 1e-4), "bf16": (8e-2, 1e-1), "fp16": (5e-3, 2e-2)}
"""By precision: a share of the largest element of the twin's gradient, and a share of the element itself.

The sum of both is what two elements may differ by. Reentrant checkpointing of these models was seen to differ from the
plain run by up to 3e-7 in fp32 and 7e-3 in bf16 (absolute), and LoRA in bf16, whose gradients are small, by a
twentieth of the largest element after four accumulated batches: an honest run stays inside.
"""


def of(model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the gradients of all parameters that require one."""
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def copied(gradients: Gradients) -> dict[str, torch.Tensor | None]:
    """Return copies that an optimizer step or `zero_grad` leaves alone."""
    return {name: None if grad is None else grad.detach().clone() for name, grad in gradients.items()}


def compare(gradients: Gradients, twin: Gradients, precision: str) -> dict[str, Any]:
    """Compare gradients with the twin's, as facts.

    `missing` and `extra` name parameters that only the twin, or only this run, has a gradient for; a parameter that has
    none in either is no difference. `worst_ratio` is the largest difference over what the tolerance allows (above 1 is
    a wrong gradient), `worst` the parameter it was found in, `largest_difference` the largest absolute one.
    """
    absolute, relative = TOLERANCES[precision]
    missing = [name for name, grad in twin.items() if grad is not None and gradients.get(name) is None]
    extra = [name for name, grad in gradients.items() if grad is not None and twin.get(name) is None]
    names = [name for name, grad in twin.items() if grad is not None and gradients.get(name) is not None]
    worst, worst_ratio, largest, not_finite = "", 0.0, 0.0, []
    for name in names:
        mine, other = gradients[name], twin[name]
        assert mine is not None
        assert other is not None
        mine, other = mine.float(), other.float()
        if not bool(torch.isfinite(mine).all()):
            not_finite.append(name)
            continue
        difference = (mine - other).abs()
        allowed = absolute * other.abs().max().clamp_min(1e-12) + relative * other.abs()
        ratio = float((difference / allowed).max())
        largest = max(largest, float(difference.max()))
        if ratio > worst_ratio:
            worst, worst_ratio = name, ratio
    return {
        "compared": len(names),
        "missing": missing,
        "extra": extra,
        "not_finite": not_finite,
        "worst": worst,
        "worst_ratio": worst_ratio,
        "largest_difference": largest,
        "tolerance": {"absolute_of_largest": absolute, "relative": relative},
    }


Twin = TypeVar("Twin")


@dataclass
class Twins(Generic[Twin]):
    """The twins of this process: each is run once, and shared by the trials that have the same one."""

    limit: int = 256
    _known: dict[Any, Twin] = field(default_factory=dict)

    def get(self, key: Any, run: Callable[[], Twin]) -> Twin:
        """Return the twin of this key, running it when it is new; the oldest makes room."""
        if key not in self._known:
            if len(self._known) >= self.limit:
                self._known.pop(next(iter(self._known)))
            self._known[key] = run()
        return self._known[key]
