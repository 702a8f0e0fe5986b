"""Versions from a list of packages: a freeze or requirements.txt, the lock files of uv, poetry, pip and Pipfile, conda.

Read as lines, so that a damaged or a foreign file yields what it holds, and nothing in it is followed or run.
"""

from __future__ import annotations

import re
from pathlib import Path

from repro.triage import reading
from repro.triage.versions import PACKAGES, Versions, settled

MOST_BYTES = 64 << 20
"""Larger files are refused: no list of packages is that long."""

_NUMBER = r"\d{1,9}(?:\.\d{1,9}){0,4}(?:[-._]?(?:a|b|c|rc|dev|post|alpha|beta)[-._]?\d{0,9})?"
_PINNED = re.compile(
    r"^\s*(?:-\s{1,8})?[\"']?(?P<name>[A-Za-z][\w.-]{0,80})(?:\[[\w, .-]{0,200}\])?"
    rf"\s{{0,8}}={{1,3}}\s{{0,8}}v?(?P<version>{_NUMBER})"
)
_CONDA_LIST = re.compile(
    rf"^(?P<name>[A-Za-z][\w.-]{{0,80}})\s{{1,60}}(?P<version>{_NUMBER})(?:\+[\w.]{{1,40}})?(?:\s|$)"
)
_WHEEL = re.compile(
    rf"[/\\](?P<name>[A-Za-z]\w{{0,80}})-(?P<version>{_NUMBER})(?:\+[\w.]{{1,40}}|%2B[\w.]{{1,40}})?(?:-[\w.-]{{1,200}}\.whl|\.tar\.gz|\.zip)"
)
_TAG = re.compile(
    rf"(?P<name>[A-Za-z][\w-]{{0,80}})(?:\.git)?(?:@|/archive/(?:refs/tags/)?)v?(?P<version>{_NUMBER})(?:[#\s;.]|$)"
)
_DIRECT = re.compile(r"^\s*(?:-e|--editable)[\s=]|^\s*[\w.\[\],-]{1,120}\s{0,8}@\s|^\s*(?:git\+|https?://|file:)")
_BLOCK = re.compile(r"^\s*\[\[?(?P<name>[\w.]{1,60})\]?\]")
_KEY = re.compile(r"^\s*(?P<key>name|version)\s{0,8}=\s{0,8}[\"'](?P<value>[^\"'\n]{1,100})[\"']")
_PIPFILE_NAME = re.compile(r"^\s*\"(?P<name>[A-Za-z][\w.-]{0,80})\": \{")
_PIPFILE_VERSION = re.compile(rf"^\s*\"version\": \"===?(?P<version>{_NUMBER})\"")
_RANGE = re.compile(r"^\s*[\"']?(?P<name>[A-Za-z][\w.-]{0,80})(?:\[[^\]\n]{0,200}\])?\s{0,8}(?:[<>~!]=?|$|;|,)")


class RequirementsError(Exception):
    """The file cannot be read as a list of packages; the message says why and what to do."""


def read(path: Path) -> Versions:
    """Return the versions that a freeze or a lock file pins.

    A package that is listed without an exact version yields a note instead. Raises RequirementsError when the file
    cannot be read, or holds no list of packages at all.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RequirementsError(f"{path} is too large to be a list of packages ({path.stat().st_size >> 20} MiB)")
        content = path.read_bytes()
    except OSError as error:
        raise RequirementsError(f"cannot read {path}: {error.strerror or error}") from error
    if content.count(0) > len(content) // 2 + 16:
        raise RequirementsError(f"{path} is not text. Write one with `pip freeze > requirements.txt`.")
    return parse(reading.decode(content), path.name)


def parse(text: str, name: str) -> Versions:
    """Return the versions pinned in the text of a file called `name`."""
    seen: dict[str, dict[str, None]] = {}
    unpinned: dict[str, str] = {}
    pairs = _from_blocks(text) if "[[package" in text else _from_lines(text, unpinned)
    listed = 0
    for package, version in pairs:
        listed += 1
        package = package.lower().replace("_", "-")
        if package in PACKAGES:
            seen.setdefault(package, {})[version] = None
    if not listed and not unpinned:
        raise RequirementsError(
            f"{name} lists no packages. Write a list with `pip freeze > requirements.txt`, or give a lock file."
        )
    versions = settled(seen, name)
    notes = [
        f"{name} has {package} {how}, which says no version"
        for package, how in unpinned.items()
        if package in PACKAGES and package not in seen
    ]
    return Versions(versions.found, versions.source, (*versions.notes, *notes))


def _from_lines(text: str, unpinned: dict[str, str]) -> list[tuple[str, str]]:
    pairs = []
    section = ""
    for line in text.splitlines():
        line = line[:2000]
        code = line.partition(" #")[0] if not line.lstrip().startswith("#") else ""
        if not code.strip():
            continue
        if match := _PIPFILE_NAME.match(code):
            section = match["name"]
        elif section and (match := _PIPFILE_VERSION.match(code)):
            pairs.append((section, match["version"]))
        elif _DIRECT.match(code):
            pairs.extend(_direct(code, unpinned))
        elif (match := _PINNED.match(code) or _CONDA_LIST.match(code)) and not code[match.end("version") :].startswith(
            (".*", "*")
        ):
            pairs.append((match["name"], match["version"]))
        elif match := _RANGE.match(code):
            unpinned[match["name"].lower().replace("_", "-")] = (
                "with a range" if match[0].strip() != match["name"] else "by name only"
            )
    return pairs


def _direct(code: str, unpinned: dict[str, str]) -> list[tuple[str, str]]:
    """Read a requirement that is an address: an archive's name or a git tag says the version, a commit does not."""
    match = _WHEEL.search(code) or _TAG.search(code)
    if match:
        return [(match["name"], match["version"])]
    egg = re.search(r"#egg=([\w.-]{1,80})|^\s*([\w.-]{1,80})\s{0,8}(?:\[[^\]]{0,200}\])?\s{0,8}@", code)
    last = re.search(r"/([\w.-]{1,80}?)(?:\.git)?(?:@|\s*$)", code)
    name = (egg and (egg[1] or egg[2])) or (last and last[1]) or ""
    if name:
        unpinned[name.lower().replace("_", "-")] = "from a source tree or an address"
    return []


def _from_blocks(text: str) -> list[tuple[str, str]]:
    """Read the `[[package]]` tables of a lock file: the first name and the first version of each."""
    pairs = []
    block: dict[str, str] = {}
    reading_block = False
    for line in [*text.splitlines(), "[end]"]:
        line = line[:2000]
        if match := _BLOCK.match(line):
            if "name" in block and "version" in block:
                pairs.append((block["name"], block["version"].partition("+")[0]))
            block = {}
            reading_block = match["name"] in ("package", "packages")
        elif reading_block and (match := _KEY.match(line)):
            block.setdefault(match["key"], match["value"])
    return pairs
