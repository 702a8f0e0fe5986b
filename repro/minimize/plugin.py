"""The pytest options of a minimization: what to start from, and where to tell what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("repro minimize")
    group.addoption("--minimize", type=Path, required=True, metavar="FILE", help="JSON: failure, scope, configuration")
    group.addoption("--minimized", type=Path, required=True, metavar="FILE", help="write what was found there, as JSON")
