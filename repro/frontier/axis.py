"""The releases along which a frontier is searched, and the cell of each."""

from __future__ import annotations

from collections.abc import Callable

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from repro.cells.releases import FIRST_SUPPORTED, Release, SelectionError, Table, select
from repro.cells.spec import Spec, specify
from repro.frontier.search import Axis

PACKAGES = ("transformers", "torch", "accelerate")

Cells = Callable[[str], Spec]
"""Returns what the cell of a version is to be."""


def axis(
    table: Table,
    along: str,
    *,
    within: str = "",
    transformers: str = "",
    torch: str = "",
    prereleases: bool = False,
    device: str = "cpu",
) -> tuple[Axis, Cells]:
    """Return the versions along a package, and how the cell of each is specified.

    Along transformers, `transformers` is the range to search (everything since the first supported, when empty). Along
    another package it is the one release that stays fixed (the newest, when empty), and `within` is the range of that
    package (all of it, when empty). Raises SelectionError.
    """
    if along not in PACKAGES:
        raise SelectionError(f"there is no frontier along {along!r}; there is: {', '.join(PACKAGES)}")
    if along == "transformers":
        transformers = transformers or within
    chosen = select(
        [transformers or (f">={FIRST_SUPPORTED}" if along == "transformers" else "latest")],
        table,
        prereleases=prereleases,
    )
    if along == "transformers":
        between = [r for r in table.of("transformers") if chosen[0].parsed <= r.parsed <= chosen[-1].parsed]
        releases = [r for r in between if prereleases or not r.prerelease]

        def cell_of(version: str) -> Spec:
            return specify(_release(table, "transformers", version), table, torch)

        fixed = {"torch": cell_of(chosen[-1].version).torch, "device": device}
        return _axis(along, releases, fixed), cell_of
    release = chosen[-1]
    releases = _within(table, along, within, prereleases=prereleases)
    fixed = {"transformers": release.version, "device": device}
    if along == "torch":
        return _axis(along, releases, fixed), lambda version: specify(release, table, version)
    spec = specify(release, table, torch)
    return _axis(along, releases, {**fixed, "torch": spec.torch}), lambda version: spec.with_accelerate(version)


def _within(table: Table, package: str, text: str, *, prereleases: bool) -> list[Release]:
    offered = [release for release in table.of(package) if prereleases or not release.prerelease]
    try:
        wanted = SpecifierSet(text)
    except InvalidSpecifier:
        raise SelectionError(f"{text!r} is no range of versions. Example: '>=2.7,<2.14'") from None
    found = [release for release in offered if wanted.contains(release.parsed, prereleases=True)]
    if not found:
        raise SelectionError(f"no {package} is within {text}; there are {offered[0].version} to {offered[-1].version}")
    return found


def _axis(package: str, releases: list[Release], fixed: dict[str, str]) -> Axis:
    versions = tuple(release.version for release in releases if not release.yanked)
    yanked = [release.version for release in releases if release.yanked]
    return Axis(package, versions, tuple(yanked), {name: version for name, version in fixed.items() if version})


def _release(table: Table, package: str, version: str) -> Release:
    release = table.get(package, version)
    if release is None:
        raise SelectionError(f"the table of releases has no {package} {version}")
    return release
