"""Versions that a text names: in paths, in the output of `transformers env` or `pip freeze`, in a sentence.

A configuration's `transformers_version` is left out: it says who saved the model, not what is installed. A requirement
with a range is left out as well: it says what is allowed, not what was there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PACKAGES = ("transformers", "torch", "accelerate", "peft", "trl", "datasets", "python")

_VERSION = (
    r"(?P<version>\d{1,4}\.\d{1,4}(?:\.\d{1,6})?(?:[-._]?(?:a|b|rc|dev|post|alpha|beta)[-._]?\d{0,8})?)"
    r"(?:\+(?P<local>[\w.]{1,40}))?(?![\w.]*\d|\.\*)"
)
_NAME = r"(?P<package>transformers|torch|pytorch|accelerate|peft|trl|datasets)"
_IN_PATH = re.compile(
    rf"[\\/]{_NAME}-{_VERSION}(?:-py[\d.]+)?(?:\.dist-info|\.egg|-py3|[\\/])", re.IGNORECASE | re.ASCII
)
_STATED = re.compile(
    rf"(?<![\w./-])[`'\"*]{{0,3}}{_NAME}[`'\"*]{{0,3}}(?:\.__version__)?\s{{0,3}}(?:version|===?|@|:|=|v)?"
    rf"(?:\s{{0,3}}\((?:GPU|XPU|accelerator)[^()\n]{{0,20}}\))?\s{{0,3}}[:=]{{0,3}}\s{{0,40}}[`'\"*v]{{0,3}}{_VERSION}",
    re.IGNORECASE | re.ASCII,
)
_PYTHON_PATH = re.compile(r"[\\/](?:python|Python)\.?(?P<major>3)\.?(?P<minor>\d{1,2})[\\/]", re.ASCII)
_PYTHON_STATED = re.compile(
    r"\bPython(?: version)?:? {1,3}(?P<version>3\.\d{1,2}(?:\.\d{1,3})?)\b", re.IGNORECASE | re.ASCII
)
_MENTIONS = ("ransformers", "orch", "ccelerate", "peft", "trl", "atasets", "TRANSFORMERS", "PYTORCH")


@dataclass(frozen=True)
class Versions:
    """Packages to versions, where each is from, and what contradicts itself and is therefore not used."""

    found: dict[str, str]
    source: dict[str, str]
    notes: tuple[str, ...] = ()

    def over(self, other: Versions) -> Versions:
        """Return these versions, completed by others where these say nothing."""
        return Versions(
            {**other.found, **self.found},
            {**other.source, **self.source},
            tuple(dict.fromkeys(self.notes + other.notes)),
        )


def find(lines: Iterable[str]) -> Versions:
    """Return the versions that the lines name. Where two differ, neither is used, and a note says so."""
    seen: dict[str, dict[str, None]] = {}
    for line in lines:
        for package, version in _in(line):
            if len(seen.setdefault(package, {})) < 20:
                seen[package][version] = None
    return settled(seen, "the text")


def settled(seen: dict[str, dict[str, None]], source: str) -> Versions:
    """Return the versions on which a source does not contradict itself, and a note on each of the others."""
    found, notes = {}, []
    for package, versions in seen.items():
        precise = [v for v in versions if not any(other != v and other.startswith(v + ".") for other in versions)]
        if len(precise) == 1:
            found[package] = precise[0]
        else:
            notes.append(f"{source} names several versions of {package} ({', '.join(precise)}); none of them is used")
    return Versions(found, dict.fromkeys(found, source), tuple(notes))


def _in(line: str) -> Iterable[tuple[str, str]]:
    if any(mention in line for mention in _MENTIONS):
        for pattern in (_IN_PATH, _STATED):
            for match in pattern.finditer(line):
                package = match["package"].lower()
                yield "torch" if package == "pytorch" else package, match["version"]
    if "ython" in line:
        for match in _PYTHON_PATH.finditer(line):
            yield "python", f"{match['major']}.{match['minor']}"
        for match in _PYTHON_STATED.finditer(line):
            yield "python", match["version"]
