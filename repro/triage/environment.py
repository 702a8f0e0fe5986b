"""Versions from an installed environment, read from its directories: nothing in it is run or imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from repro.triage.versions import PACKAGES, Versions, settled

_INSTALLED = re.compile(
    r"(?P<name>[A-Za-z][\w.]*?)-(?P<version>\d[\w.!]*)(?:\+[\w.]+)?(?:-py3[.\d]*)?\.(?:dist-info|egg-info|egg)"
)
_PYTHON = re.compile(r"python(3\.\d+)")
_LIBRARIES = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages",
              "lib/python3/dist-packages", "local/lib/python3*/dist-packages", "Lib/site-packages")  # fmt: skip


class NoEnvironmentError(Exception):
    """There is no Python environment at this place; the message says what was looked for."""


def read(place: Path) -> Versions:
    """Return the versions installed in an environment, named by its directory or by its `python`.

    Raises NoEnvironmentError when there is none. An environment without transformers yields a note.
    """
    directories = list(dict.fromkeys(_packages(place.expanduser())))
    if not directories:
        raise NoEnvironmentError(
            f"no Python environment at {place}: neither it nor what it belongs to has a site-packages directory. "
            "Name a virtual environment's directory, or its python."
        )
    seen: dict[str, dict[str, None]] = {}
    for directory in directories:
        here: dict[str, dict[str, None]] = {}
        for name, version in _installed(directory):
            here.setdefault(name, {})[version] = None
        # What comes first on the path is what is imported, so that a base environment only completes.
        seen = {**here, **seen}
        if match := _PYTHON.search(directory.as_posix()):
            seen.setdefault("python", {match[1]: None})
    versions = settled(seen, str(place))
    missing = () if "transformers" in seen else (f"the environment {place} has no transformers",)
    return Versions(versions.found, versions.source, (*versions.notes, *missing))


def _packages(place: Path) -> Iterator[Path]:
    """Yield the directories that packages of an environment lie in, those that are imported from first, first."""
    if not place.exists():
        return
    if place.is_dir() and place.name in ("site-packages", "dist-packages"):
        yield place
        return
    prefixes = [place] if place.is_dir() else [place.parent.parent, place.parent]
    for prefix in prefixes:
        yield from _below(prefix)
        yield from _base(prefix)
    if place.is_symlink() and not any((prefix / "pyvenv.cfg").exists() for prefix in prefixes):
        yield from _below(place.resolve().parent.parent)


def _below(prefix: Path) -> Iterator[Path]:
    for pattern in _LIBRARIES:
        yield from sorted(path for path in prefix.glob(pattern) if path.is_dir())


def _base(prefix: Path) -> Iterator[Path]:
    """Yield the directories of the Python that a virtual environment was told to look through as well."""
    try:
        settings = {
            line.partition("=")[0].strip(): line.partition("=")[2].strip()
            for line in (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
            if "=" in line
        }
    except (OSError, ValueError):
        return
    if settings.get("include-system-site-packages", "").lower() == "true" and settings.get("home"):
        yield from _below(Path(settings["home"]).parent)


def _installed(directory: Path) -> Iterator[tuple[str, str]]:
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return
    for name in names:
        match = _INSTALLED.fullmatch(name)
        if match and (package := match["name"].lower().replace("_", "-")) in PACKAGES:
            yield package, match["version"]
