"""Limits of time and memory, as a person writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
GRACE_SECONDS = 20.0
"""A trial ends itself at its limit. If it cannot, it is killed from outside, this much later."""


@dataclass(frozen=True)
class Limits:
    """What a trial and a whole cell may take: wall-clock seconds, and bytes of resident memory."""

    trial_seconds: float = 120.0
    trial_bytes: int = 6 * 2**30
    cell_seconds: float = 3600.0
    cell_bytes: int = 12 * 2**30


def parse_bytes(text: str) -> int:
    """Return a size such as `6GiB`, `500M` or `1000000` in bytes. Raises ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text!r} is no size; say for example 6GiB or 500MiB")
    return int(float(match[1]) * UNITS[match[2].lower()])
