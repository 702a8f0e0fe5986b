"""A forecast as plain data. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from repro.forecast.evaluation import EvaluationPeak
from repro.forecast.setting import Setting
from repro.forecast.timeline import Peak


@dataclass(frozen=True)
class Forecast:
    """The predicted peaks of one setting, in bytes that an allocator would count.

    What a device needs beside them (its context, library workspaces, fragmentation) is not in them.
    """

    model: str
    setting: Setting
    parameters: int
    training: Peak
    evaluation: EvaluationPeak
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The higher one of the two peaks."""
        return max(self.training.peak_bytes, self.evaluation.peak_bytes)

    def fits(self, capacity: int) -> bool:
        """Tell whether training with evaluation stays within so many bytes."""
        return self.peak_bytes <= capacity

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "model": self.model,
            "parameters": self.parameters,
            "setting": asdict(self.setting),
            "peak_bytes": self.peak_bytes,
            "training": {"peak_bytes": self.training.peak_bytes, "by_kind": self.training.by_kind},
            "evaluation": asdict(self.evaluation),
            "notes": list(self.notes),
        }
