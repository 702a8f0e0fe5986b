"""Asking the index which releases there are."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from repro.cells import ambient
from repro.cells.releases import FIRST_SUPPORTED, Release, Table, dump

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

PACKAGES = {"transformers": FIRST_SUPPORTED, "accelerate": Version("0.20"), "torch": Version("2.0")}
"""What the table holds, each from a version on: transformers to choose from, the others to date a cell's torch."""


class IndexTroubleError(Exception):
    """The index could not be asked, or its answer is of no use; the message says why and what to do."""


def fetch(today: datetime.date) -> Table:
    """Return the releases that the index has today. Raises IndexTroubleError."""
    import requests
    from pypi_simple import PyPISimple

    endpoint = ambient.index()
    try:
        with PyPISimple(endpoint) if endpoint else PyPISimple() as client:
            packages = {
                name: _releases(name, client.get_project_page(name, timeout=60).packages, first)
                for name, first in PACKAGES.items()
            }
    except requests.RequestException as error:
        raise IndexTroubleError(f"the index cannot be asked: {_root(error)}. The table stays as it was.") from error
    return Table(today, packages)


def write(table: Table, path: Path) -> None:
    """Write the table in one step, so that a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(dump(table))
    partial.replace(path)


def _releases(name: str, files: Iterable[DistributionPackage], first: Version) -> tuple[Release, ...]:
    found: dict[Version, list[DistributionPackage]] = {}
    for file in files:
        try:
            version = Version(file.version or "")
        except InvalidVersion:
            continue
        if version >= first:
            found.setdefault(version, []).append(file)
    releases = []
    for version, of_version in sorted(found.items()):
        uploaded = [file.upload_time for file in of_version if file.upload_time is not None]
        if not uploaded:
            raise IndexTroubleError(
                f"the index does not say when {name} {version} was uploaded, and a cell is dated by that. "
                "Set UV_DEFAULT_INDEX to an index that does (one with the JSON form of the simple API)."
            )
        releases.append(
            Release(
                str(version),
                min(uploaded).date(),
                all(file.is_yanked for file in of_version),
                next((file.requires_python for file in of_version if file.requires_python), ""),
            )
        )
    return tuple(releases)


def _root(error: BaseException) -> str:
    """Return the innermost reason of an error, which is the one that a person can act upon."""
    inner = error
    while (cause := inner.__cause__ or inner.__context__) is not None:
        inner = cause
    return str(inner) or type(inner).__name__
