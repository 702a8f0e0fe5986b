"""The census's pytest plugin: options that choose families and limits, and a line of progress per family.

Loaded by `-p repro.census.plugin`; its options all begin with `--census`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.census import families
from repro.census.observer import CensusObserver
from repro.census.supervisor import GIB, Limits


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the census's options."""
    group = parser.getgroup("census", "census of models under gradient checkpointing")
    group.addoption("--census", choices=("speech", "all"), default="speech", help="which families (default: speech)")
    group.addoption("--census-families", metavar="FILE", help="only the families named in this file, one per line")
    group.addoption("--census-every-class", action="store_true", help="every class of families that are not speech too")
    group.addoption("--census-results", metavar="DIR", help="write census records there (default: nowhere)")
    group.addoption("--census-log", metavar="FILE", help="what workers write to standard error (default: nowhere)")
    group.addoption("--census-progress", action="store_true", help="one line per family on standard error")
    group.addoption("--census-seconds", type=float, default=60.0, help="limit of one class (default: %(default)s)")
    group.addoption("--census-bytes", type=int, default=4 * GIB, help="memory of one class (default: %(default)s)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that takes a `census_family` one item per family."""
    if "census_family" in metafunc.fixturenames:
        metafunc.parametrize("census_family", _chosen(metafunc.config))


@pytest.fixture(scope="session")
def census(request: pytest.FixtureRequest) -> Iterator[CensusObserver]:
    """Yield what runs families in this pytest process."""
    option = request.config.getoption
    observer = CensusObserver(
        Path(option("--census-results")) if option("--census-results") else None,
        Limits(seconds=option("--census-seconds"), memory=option("--census-bytes")),
        option("--census-every-class"),
        Path(option("--census-log")) if option("--census-log") else None,
    )
    yield observer
    observer.close()


def pytest_configure(config: pytest.Config) -> None:
    """Report progress from the process that sees all reports: the only one, or xdist's controller."""
    if config.getoption("--census-progress") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Progress(), "census-progress")


class _Progress:
    def __init__(self) -> None:
        self._done = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        self._done += 1
        for name, said in report.user_properties:
            if name == "census":
                print(f"[{self._done}] {said}", file=sys.stderr, flush=True)


def _chosen(config: pytest.Config) -> list[str]:
    listing = config.getoption("--census-families")
    if listing:
        return [line.strip() for line in Path(listing).read_text(encoding="utf-8").splitlines() if line.strip()]
    return list(families.all_families() if config.getoption("--census") == "all" else families.speech_families())
