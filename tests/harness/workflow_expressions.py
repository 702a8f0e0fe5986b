"""The expressions of GitHub's workflows, as far as those of this repository use them: `${{ a.b || 'c' }}` and `if:`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(\d+)|([A-Za-z_][\w.-]*)|(\|\||&&|==|!=|[!(),]))")
STATUS = ("always", "success", "failure", "cancelled")


class ExpressionError(ValueError):
    """An expression that is none, or uses what is not known here."""


class _Reader:
    """Reads one expression from left to right, and knows its value at the end."""

    def __init__(self, text: str, context: Mapping[str, Any], failed: bool) -> None:
        self.text = text
        self.context = context
        self.tokens = self._split(text.strip())
        self.functions: dict[str, Callable[..., Any]] = {
            "always": lambda: True,
            "success": lambda: not failed,
            "failure": lambda: failed,
            "cancelled": lambda: False,
            "fromJSON": json.loads,
            "toJSON": lambda value: json.dumps(value, indent=2),
        }

    def _split(self, text: str) -> list[str]:
        found, at = [], 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if not match:
                raise ExpressionError(f"cannot read {text[at:]!r} in {text!r}")
            found.append(match[0].strip())
            at = match.end()
        return found

    def value(self) -> Any:
        found = self._either()
        if self.tokens:
            raise ExpressionError(f"{self.tokens} is left of {self.text!r}")
        return found

    def _next(self, *wanted: str) -> bool:
        if self.tokens and self.tokens[0] in wanted:
            self.tokens.pop(0)
            return True
        return False

    def _either(self) -> Any:
        left = self._both()
        while self._next("||"):
            right = self._both()
            left = left or right
        return left

    def _both(self) -> Any:
        left = self._compared()
        while self._next("&&"):
            right = self._compared()
            left = left and right
        return left

    def _compared(self) -> Any:
        left = self._single()
        for operator, same in (("==", True), ("!=", False)):
            if self._next(operator):
                return _equal(left, self._single()) is same
        return left

    def _single(self) -> Any:
        if self._next("!"):
            return not self._single()
        if self._next("("):
            found = self._either()
            self._close()
            return found
        if not self.tokens:
            raise ExpressionError(f"{self.text!r} ends too early")
        token = self.tokens.pop(0)
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        if token in ("true", "false", "null"):
            return json.loads(token)
        return self._called(token) if self._next("(") else self._looked_up(token)

    def _called(self, name: str) -> Any:
        given = []
        while not self._next(")"):
            given.append(self._either())
            self._next(",")
        if name not in self.functions:
            raise ExpressionError(f"no function {name!r}, in {self.text!r}")
        return self.functions[name](*given)

    def _close(self) -> None:
        if not self._next(")"):
            raise ExpressionError(f"a parenthesis is left open in {self.text!r}")

    def _looked_up(self, name: str) -> Any:
        first, *rest = name.split(".")
        if first not in self.context:
            raise ExpressionError(f"no context {first!r} here, in {self.text!r}")
        found: Any = self.context[first]
        for part in rest:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


def _equal(left: Any, right: Any) -> bool:
    """Compare as GitHub does: text without its case; what is of two kinds, as numbers, where nothing is 0."""
    if isinstance(left, str) and isinstance(right, str):
        return left.lower() == right.lower()
    if type(left) is type(right):
        return bool(left == right)
    return _number(left) == _number(right)


def _number(value: Any) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        return float("nan")


def evaluate(text: str, context: Mapping[str, Any], *, failed: bool = False) -> Any:
    """Return an expression's value; what a context lacks is null. Raises ExpressionError for what is none."""
    return _Reader(text, context, failed).value()


def holds(condition: str, context: Mapping[str, Any], *, failed: bool = False) -> bool:
    """Tell whether a job or step with this `if:` runs; without a word about status, only where nothing failed."""
    bare = condition.strip().removeprefix("${{").removesuffix("}}") or "success()"
    implied = not failed or any(f"{name}(" in bare for name in STATUS)
    return bool(evaluate(bare, context, failed=failed)) and implied


def interpolate(text: Any, context: Mapping[str, Any]) -> str:
    """Return a text with its expressions replaced by their values."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: _text(evaluate(match[1], context)), _text(text))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
