"""A directory of tiny wheels that uv can build real cells from, in no time and without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path

from repro.cells.spec import PACKAGES

VERSIONS = {"transformers": ("4.52.4", "4.53.3"), "torch": ("2.13.0",), "pytest": ("8.4.0",)}


def make(directory: Path, *, without: str = "") -> Path:
    """Write the wheels of everything that a cell needs; `without` leaves a package out."""
    directory.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        for version in VERSIONS.get(package, ("1.0",)):
            if package != without:
                _wheel(directory, package.replace("-", "_"), version)
    return directory


def _wheel(directory: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f'__version__ = "{version}"\n' + "# filler\n" * 2000)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
