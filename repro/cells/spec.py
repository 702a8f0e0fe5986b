"""What a cell is to be: versions, the date its companions are resolved as of, and where torch comes from.

One rule dates a cell: everything is resolved as of 28 days after its release was uploaded, which is what a person who
installed it in its first weeks had. Test tools are exempt, and so is torch with what it needs, unless the cell asks
for a torch of its time.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from repro.cells.releases import Release, SelectionError, Table

SETTLED = datetime.timedelta(days=28)
TORCH_OF_ITS_TIME = "of-its-time"

PACKAGES = ("transformers", "torch", "accelerate", "datasets", "numpy", "jiwer", "peft", "pytest", "pytest-xdist")
TEST_TOOLS = ("pytest", "pytest-xdist", "pluggy", "iniconfig", "execnet", "pygments", "packaging")
TORCH_NEEDS = (
    "torch",
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "sympy",
    "typing-extensions",
    "setuptools",
)

PYTHONS = {
    (3, 10): datetime.date(2021, 10, 4),
    (3, 11): datetime.date(2022, 10, 24),
    (3, 12): datetime.date(2023, 10, 2),
    (3, 13): datetime.date(2024, 10, 7),
    (3, 14): datetime.date(2025, 10, 7),
}
"""When Pythons were released (PEP 619, 664, 693, 719, 745). Their wheels take a year to be everywhere."""
RIPE = datetime.timedelta(days=365)


@dataclass(frozen=True)
class Spec:
    """A cell that can be built. `torch` is an exact version, or empty for the newest that the index offers."""

    transformers: str
    torch: str
    python: str
    exclude_newer: datetime.date
    torch_of_its_time: bool = False
    accelerate: str = ""

    @property
    def id(self) -> str:
        """The name of the cell's directory: readable, and different for everything that is built differently."""
        facts = {**asdict(self), "exclude_newer": self.exclude_newer.isoformat(), "packages": PACKAGES}
        if not self.accelerate:  # a cell that leaves it to the resolver keeps its name
            del facts["accelerate"]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
        return f"transformers-{self.transformers}-torch-{self.torch or 'newest'}-py{self.python}-{digest}"

    @property
    def name(self) -> str:
        """What a person calls it."""
        torch = f" with torch {self.torch}" if self.torch != desk_torch() else ""
        accelerate = f" with accelerate {self.accelerate}" if self.accelerate else ""
        return f"transformers {self.transformers}{torch}{accelerate}"

    def requirements(self) -> list[str]:
        """Return what is installed, as requirements."""
        pins = {"transformers": f"=={self.transformers}", "torch": f"=={self.torch}" if self.torch else ""}
        pins |= {"accelerate": f"=={self.accelerate}"} if self.accelerate else {}
        return [package + pins.get(package, "") for package in PACKAGES]

    def undated(self) -> tuple[str, ...]:
        """Return the packages that may be newer than the cell's date."""
        torch = ("torch", "setuptools") if self.torch_of_its_time else TORCH_NEEDS
        return TEST_TOOLS + torch + (("accelerate",) if self.accelerate else ())

    def with_accelerate(self, version: str) -> Spec:
        """Return the same cell with a release of accelerate, which may be newer than the cell's date."""
        return replace(self, accelerate=version)


def specify(release: Release, table: Table, torch: str = "", python: str = "") -> Spec:
    """Return the cell of a release. `torch` is a version, `of-its-time`, or empty for the desk's own or the newest.

    Raises SelectionError for a torch that is no version or that did not exist, and for a Python that the release
    excludes.
    """
    cutoff = release.uploaded + SETTLED
    of_its_time = torch == TORCH_OF_ITS_TIME
    if of_its_time:
        newest = table.newest_before("torch", release.uploaded)
        if newest is None:
            raise SelectionError(f"the table knows no torch from before transformers {release.version}.")
        torch = newest.version
    elif torch:
        torch = _torch_version(torch, table)
    python = _python(python, release) if python else ripe_python(release)
    return Spec(release.version, torch or desk_torch(), python, cutoff, of_its_time)


def twin(spec: Spec, torch: str = "") -> Spec:
    """Return the same cell with the torch that cells usually have."""
    return replace(spec, torch=torch or desk_torch(), torch_of_its_time=False)


def desk_torch() -> str:
    """Return the torch installed where this runs, without its build suffix: a cell then has the same. Else nothing."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Version(version("torch")).public
    except PackageNotFoundError:
        return ""


def ripe_python(release: Release) -> str:
    """Return the Python minor for a release: the desk's own, where the release and its companions had wheels for it."""
    here = (sys.version_info.major, sys.version_info.minor)
    allowed = SpecifierSet(release.requires_python)
    ripe = [minor for minor, date in PYTHONS.items() if date + RIPE <= release.uploaded + SETTLED]
    fit = [minor for minor in ripe if allowed.contains(f"{minor[0]}.{minor[1]}.99")]
    chosen = here if here in fit or not fit else max(fit)
    return f"{chosen[0]}.{chosen[1]}"


def _python(text: str, release: Release) -> str:
    if not re.fullmatch(r"3\.\d{1,2}(\.\d{1,2})?", text):
        raise SelectionError(f"{text!r} is no Python; say for example 3.11")
    patch = text if text.count(".") == 2 else f"{text}.99"
    if not SpecifierSet(release.requires_python).contains(patch):
        raise SelectionError(f"transformers {release.version} wants Python {release.requires_python}, not {text}.")
    return text


def _torch_version(text: str, table: Table) -> str:
    try:
        version = Version(text)
    except InvalidVersion:
        raise SelectionError(
            f"{text!r} is no version of torch; say for example 2.13.0, or {TORCH_OF_ITS_TIME}"
        ) from None
    known: Sequence[Release] = table.of("torch")
    if known and version.public not in {release.version for release in known} and version < known[-1].parsed:
        nearest = max((r for r in known if r.parsed <= version), key=lambda r: r.parsed, default=known[0])
        raise SelectionError(f"there is no torch {text}. Nearest: {nearest.version}.")
    return text


def python_of(path: Path) -> Path:
    """Return the interpreter of an environment, given as its directory or as the interpreter itself.

    Raises SelectionError when there is none.
    """
    if path.is_file():
        return path.absolute()
    for candidate in (path / "bin" / "python", path / "Scripts" / "python.exe"):
        if candidate.exists():
            return candidate.absolute()
    what = "holds no interpreter (bin/python)" if path.is_dir() else "does not exist"
    raise SelectionError(f"--environment {path}: {what}. Name a virtual environment, or its python.")
