"""The pytest item that minimizes. `repro minimize` names it on pytest's command line; nothing else collects it."""

from __future__ import annotations

import json

import pytest

from repro.catalog import find
from repro.minimize.reduce import reduce
from repro.observe.observer import Observer


def test_minimize(pytestconfig: pytest.Config, observer: Observer) -> None:
    """Reduce the configuration that the options name, and write what was found."""
    asked = json.loads(pytestconfig.getoption("--minimize").read_text())
    failure = find(asked["failure"])
    # Importing torch is not what is timed; the probe does that, and is the mechanism that the observations go with.
    observer.mechanism(failure.id)
    found = reduce(failure, failure.configuration(**asked["configuration"]), asked["scope"], observer.observe)
    about = {name: observer.cell[name] for name in ("cell", "transformers", "torch", "device")}
    pytestconfig.getoption("--minimized").write_text(json.dumps({**about, **found.as_json()}))
