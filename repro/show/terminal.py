"""The terminal: one place that decides about colour, width and progress.

Results go to standard output, everything about how things are going to standard error, so that a pipe carries results
only. Without a terminal there is no colour, no cursor movement, and tables are as wide as they need to be.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 400
"""Columns of a table in a pipe: enough that rich folds nothing."""


def out() -> Console:
    """Return the console for results."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else WIDE)


def err() -> Console:
    """Return the console for progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def say(message: str) -> None:
    """Write one plain line about how things are going to standard error."""
    sys.stderr.write(f"{message}\n")  # in one piece: several threads may be writing
    sys.stderr.flush()


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 cell`, `2 cells`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_json(value: Any) -> None:
    """Write a value as JSON to standard output, for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
