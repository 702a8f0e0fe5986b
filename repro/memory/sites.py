"""Where a block was made: the nearest lines of code outside of torch, kept once each."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any

DEPTH = 4
"""Lines kept of a call stack, innermost first."""
WORTH_TRACING = 32
"""A block is traced when it is at least 1/32 of the peak so far: walking the stack for each would cost time."""
EVERY_BLOCK = 0
"""Instead of such a share: every block is traced."""

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PASSED_OVER = (f"{os.sep}torch{os.sep}", f"{os.sep}contextlib.py", f"{os.sep}functools.py")


class Sites:
    """Numbers call stacks, from 1 on. Frames of torch and of this room are passed over."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.names: dict[int, str] = {}
        # Code is told apart by its address, and kept so that none takes another's: its own hash reads all of it.
        self._passes: dict[int, bool] = {}
        self._kept: list[CodeType] = []

    def current(self, operator: Any = None) -> int:
        """Return the number of the caller's call stack, naming the operator when it is known."""
        key: list[Any] = [operator]
        frames: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)
        passes = self._passes
        while frame is not None and len(frames) < DEPTH:
            code = frame.f_code
            address = id(code)
            passed = passes.get(address)
            if passed is None:
                passed = passes[address] = _passed_over(code.co_filename)
                self._kept.append(code)
            if not passed:
                frames.append(frame)
                key.append(address)
                key.append(frame.f_lasti)
            frame = frame.f_back
        number = self._numbers.get(known := tuple(key))
        if number is None:
            number = self._numbers[known] = len(self._numbers) + 1
            text = " < ".join(f"{_short(f.f_code.co_filename)}:{f.f_lineno} {_name(f.f_code)}" for f in frames)
            self.names[number] = f"{text} [{operator}]" if operator is not None else text
        return number


def _name(code: CodeType) -> str:
    """Return a function's name, with that of its class where this Python knows it (3.11 and later)."""
    return str(getattr(code, "co_qualname", code.co_name))


SITES = Sites()
"""The process's: a place that an earlier run named has its number already."""


def _passed_over(filename: str) -> bool:
    return filename.startswith((_HERE, "<")) or any(part in filename for part in _PASSED_OVER)


def _short(filename: str) -> str:
    for mark in (f"site-packages{os.sep}", f"dist-packages{os.sep}"):
        if mark in filename:
            return filename.split(mark, 1)[1]
    return os.path.join(*filename.split(os.sep)[-2:])
