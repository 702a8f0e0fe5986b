"""Turning an exception into facts."""

from __future__ import annotations

import traceback
from typing import Any

FRAMES = 16
MESSAGE_CHARACTERS = 2000


class RefusedError(Exception):
    """This release has no such argument or method: advice that names it cannot be followed here."""


class UnobservableError(Exception):
    """This cell cannot run the trial, for a reason that is declared: the trial is skipped, and counted as such."""


def as_facts(error: BaseException) -> dict[str, Any]:
    """Return the type, base classes, message and innermost frames (`package/file.py:function`) of an error."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return {
        "type": type(error).__name__,
        "bases": [kind.__name__ for kind in type(error).__mro__[1:-2]],
        "message": str(error)[:MESSAGE_CHARACTERS],
        "frames": [f"{_inside_package(frame.filename)}:{frame.name}" for frame in frames],
    }


def _inside_package(path: str) -> str:
    parts = path.replace("\\", "/").split("/")
    for marker in ("site-packages", "dist-packages", "repro"):
        if marker in parts:
            start = len(parts) - 1 - parts[::-1].index(marker)
            return "/".join(parts[start + (marker != "repro") :])
    return parts[-1]


def is_refusal(error: BaseException) -> bool:
    """Tell whether an error says that an argument is unknown to this release."""
    if isinstance(error, RefusedError):
        return True
    return isinstance(error, TypeError) and "unexpected keyword argument" in str(error)
