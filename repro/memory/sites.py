"""Where a block was made: the nearest lines of code outside of torch, kept once each."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any

DEPTH = 4
"""Lines kept of a call stack, innermost first."""
_KEY_LENGTH = 1 + 2 * DEPTH
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
        self._passes: dict[CodeType, bool] = {}

    def current(self, operator: Any = None) -> int:
        """Return the number of the caller's call stack, naming the operator when it is known."""
        key: list[Any] = [operator]
        frame: FrameType | None = sys._getframe(1)
        passes = self._passes
        while frame is not None and len(key) < _KEY_LENGTH:
            code = frame.f_code
            passed = passes.get(code)
            if passed is None:
                passed = passes[code] = _passed_over(code.co_filename)
            if not passed:
                key.append(code)
                key.append(frame.f_lineno)
            frame = frame.f_back
        number = self._numbers.get(known := tuple(key))
        if number is None:
            number = self._numbers[known] = len(self._numbers) + 1
            stack = zip(key[1::2], key[2::2], strict=True)
            text = " < ".join(f"{_short(code.co_filename)}:{line} {_name(code)}" for code, line in stack)
            self.names[number] = f"{text} [{operator}]" if operator is not None else text
        return number


def _name(code: CodeType) -> str:
    """Return a function's name, with that of its class where this Python knows it (3.11 and later)."""
    return str(getattr(code, "co_qualname", code.co_name))


def _passed_over(filename: str) -> bool:
    return filename.startswith((_HERE, "<")) or any(part in filename for part in _PASSED_OVER)


def _short(filename: str) -> str:
    for mark in (f"site-packages{os.sep}", f"dist-packages{os.sep}"):
        if mark in filename:
            return filename.split(mark, 1)[1]
    return os.path.join(*filename.split(os.sep)[-2:])
