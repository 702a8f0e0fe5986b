"""Which releases there are, when they were uploaded, and which of them a user means.

The table is `releases.json` beside this module; `repro releases --refresh` brings it up to date from the index. It is
never edited by hand.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from repro.cells.places import cache_home, in_source_tree

PACKAGED = Path(__file__).with_name("releases.json")
FIRST_SUPPORTED = Version("4.36")
"""The oldest transformers minor that the trials are written for."""


class SelectionError(ValueError):
    """What was asked for selects no release; the message offers what does."""


@dataclass(frozen=True)
class Release:
    """One release of a package."""

    version: str
    uploaded: datetime.date
    yanked: bool = False
    requires_python: str = ""

    @cached_property
    def parsed(self) -> Version:
        """The version, comparable."""
        return Version(self.version)

    @property
    def prerelease(self) -> bool:
        """Whether it is a release candidate or the like."""
        return self.parsed.is_prerelease


@dataclass(frozen=True)
class Table:
    """The releases of some packages, as an index had them on a day."""

    refreshed: datetime.date
    packages: Mapping[str, tuple[Release, ...]]

    def of(self, package: str) -> tuple[Release, ...]:
        """Return the releases of a package, oldest version first; none for a package that the table lacks."""
        return self.packages.get(package, ())

    def get(self, package: str, version: str) -> Release | None:
        """Return one release, or None."""
        wanted = Version(version)
        return next((release for release in self.of(package) if release.parsed == wanted), None)

    def newest_before(self, package: str, date: datetime.date) -> Release | None:
        """Return the newest final release of a package that was uploaded by a date, yanked ones left out."""
        found = [r for r in self.of(package) if r.uploaded <= date and not r.yanked and not r.prerelease]
        return max(found, key=lambda release: release.parsed, default=None)


def select(texts: Sequence[str], table: Table, *, prereleases: bool = False) -> list[Release]:
    """Return the transformers releases that a user means, oldest first, each once.

    Each text is a comma-separated list of: a version (`4.52.4`; with fewer than three parts, the last release that
    starts with it); a range (`>=4.50,<5`: every release in it, neighbouring conditions belong together); `latest`; or
    `all`, the last patch of every minor since 4.36. A yanked release is taken only when its whole version is named. A
    pre-release is taken when named, when a range's own bound is one, or when `prereleases` is set. Raises
    SelectionError, with the nearest release, when an item selects nothing.
    """
    known = [release for release in table.of("transformers") if release.parsed >= FIRST_SUPPORTED]
    found: dict[str, Release] = {}
    for item in _items(texts):
        for release in _meant_by(item, known, table, prereleases):
            found[release.version] = release
    if not found:
        raise SelectionError("no release was named; say for example --transformers 4.52.4,latest")
    return sorted(found.values(), key=lambda release: release.parsed)


def _items(texts: Sequence[str]) -> Iterable[str]:
    """Split lists, keeping neighbouring conditions together as one range."""
    for text in texts:
        conditions: list[str] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            if part[0] in "<>=!~":
                conditions.append(part)
                continue
            if conditions:
                yield ",".join(conditions)
                conditions = []
            yield part
        if conditions:
            yield ",".join(conditions)


def _meant_by(item: str, known: Sequence[Release], table: Table, prereleases: bool) -> list[Release]:
    offered = [release for release in known if not release.yanked and (prereleases or not release.prerelease)]
    if item == "latest":
        return offered[-1:]
    if item == "all":
        return list(last_patches(offered))
    if item[0] in "<>=!~":
        return _in_range(item, known, table, prereleases)
    try:
        version = Version(item)
    except InvalidVersion:
        raise SelectionError(
            f"{item!r} is no version, no range, and neither `latest` nor `all`. "
            f"Examples: 4.52.4  '>=4.50,<5'  latest  all.{_nearest(item, known)}"
        ) from None
    if re.fullmatch(r"\d+(\.\d+)?", item):
        matching = [
            r for r in offered if not r.prerelease and r.version.split(".")[: len(version.release)] == item.split(".")
        ]
    else:
        matching = [release for release in known if release.parsed == version]
    if not matching:
        old = f" Trials are written for {FIRST_SUPPORTED} and newer." if version < FIRST_SUPPORTED else ""
        raise SelectionError(f"there is no transformers {item}.{old}{_nearest(item, known)} {_as_of(table)}")
    return matching[-1:]


def _in_range(text: str, known: Sequence[Release], table: Table, prereleases: bool) -> list[Release]:
    try:
        wanted = SpecifierSet(text)
    except InvalidSpecifier:
        raise SelectionError(f"{text!r} is no range of versions. Example: '>=4.50,<5'") from None
    pinned = {condition.version for condition in wanted if condition.operator in ("==", "===")}
    takes_pre = prereleases or any(_is_prerelease(condition.version) for condition in wanted)
    within = [r for r in known if wanted.contains(r.parsed, prereleases=takes_pre)]
    found = [release for release in within if not release.yanked or release.version in pinned]
    if found:
        return found
    if within:
        yanked = ", ".join(release.version for release in within)
        raise SelectionError(f"the range {text} holds yanked releases only ({yanked}); name one by itself to run it.")
    bounds = [condition.version for condition in wanted]
    raise SelectionError(f"no transformers release is within {text}.{_nearest(bounds[0], known)} {_as_of(table)}")


def _is_prerelease(text: str) -> bool:
    try:
        return Version(text).is_prerelease
    except InvalidVersion:  # `==4.52.*`
        return False


def _nearest(text: str, known: Sequence[Release]) -> str:
    """Name the releases on both sides of a version, or nothing when it is none."""
    digits = re.search(r"\d+(\.\d+)*", text)
    finals = [release for release in known if not release.prerelease and not release.yanked]
    if not digits or not finals:
        return ""
    wanted = Version(digits[0])
    below = [release.version for release in finals if release.parsed <= wanted]
    above = [release.version for release in finals if release.parsed > wanted]
    return f" Nearest: {' and '.join(below[-1:] + above[:1])}."


def _as_of(table: Table) -> str:
    return f"(Releases as of {table.refreshed}; `repro releases --refresh` updates them.)"


def last_patches(releases: Iterable[Release]) -> Iterable[Release]:
    """Return the newest release of each minor, in the order of the minors."""
    newest: dict[tuple[int, int], Release] = {}
    for release in releases:
        minor = (release.parsed.major, release.parsed.minor)
        if minor not in newest or release.parsed > newest[minor].parsed:
            newest[minor] = release
    return [newest[minor] for minor in sorted(newest)]


def refreshed_path() -> Path:
    """Return where a refreshed table is kept: in the source tree, or beside the cells where that is not ours."""
    return PACKAGED if in_source_tree() and os.access(PACKAGED.parent, os.W_OK) else cache_home() / "releases.json"


@lru_cache(maxsize=1)
def table() -> Table:
    """Return the newest table there is: the packaged one, or the one that this user refreshed."""
    tables = [parse(json.loads(path.read_text())) for path in {PACKAGED, refreshed_path()} if path.exists()]
    return max(tables, key=lambda candidate: candidate.refreshed)


def parse(document: Mapping[str, Any]) -> Table:
    """Build a table from its JSON."""
    packages = {
        package: tuple(
            Release(version, datetime.date.fromisoformat(row["uploaded"]), row["yanked"], row["requires_python"])
            for version, row in sorted(rows.items(), key=lambda item: Version(item[0]))
        )
        for package, rows in document["packages"].items()
    }
    return Table(datetime.date.fromisoformat(document["refreshed"]), packages)


def dump(table: Table) -> str:
    """Return the table as JSON, one release a line, so that a refresh reads well as a diff."""
    blocks = []
    for package, releases in table.packages.items():
        rows = [
            f"      {json.dumps(r.version)}: "
            + json.dumps(
                {
                    "uploaded": r.uploaded.isoformat(),
                    "yanked": r.yanked,
                    "prerelease": r.prerelease,
                    "requires_python": r.requires_python,
                }
            )
            for r in sorted(releases, key=lambda release: release.parsed)
        ]
        blocks.append(f"    {json.dumps(package)}: {{\n" + ",\n".join(rows) + "\n    }")
    head = f'{{\n  "refreshed": "{table.refreshed.isoformat()}",\n  "packages": {{\n'
    return head + ",\n".join(blocks) + "\n  }\n}\n"
