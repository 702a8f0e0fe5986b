"""A suite that keeps the contract of the real one, with trials that misbehave: copied into place as a `conftest.py`.

`actions.json` beside it says what each trial does; the cell's id is given as `--requested`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from repro.store.records import record
from repro.store.writer import Writer


def pytest_addoption(parser: pytest.Parser) -> None:
    for name in ("results", "failures", "trials", "trial-set", "requested", "exclude-newer"):
        parser.addoption(f"--{name}", default="")
    parser.addoption("--trial-seconds", type=float)
    parser.addoption("--trial-bytes", type=int)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    trials = Path(metafunc.config.getoption("--trials")).read_text().split()
    metafunc.parametrize("trial", trials)


@pytest.fixture(scope="session")
def writer(request: pytest.FixtureRequest) -> Writer:
    return Writer(Path(request.config.getoption("--results")))


@pytest.fixture
def act(request: pytest.FixtureRequest, writer: Writer, trial: str) -> None:
    cell = request.config.getoption("--requested")
    action = json.loads(Path(__file__).with_name("actions.json").read_text()).get(trial, "train")
    about = {"failure": trial.split(".")[0], "trial": trial, "scope": "model", "configuration": {}}
    writer.append(record("started", cell, **about, pid=os.getpid()))
    if action == "hang":
        time.sleep(600)
    elif action == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action == "leave":
        os._exit(5)
    elif action == "eat":
        # At once, so that a slow machine does not reach the time limit first; bounded, should nobody stop it.
        eaten = b"x" * (700 * 2**20)
        time.sleep(600)
        del eaten
    words = "word " * (1000 if action == "wordy" else 1)
    facts = {"end": "completed", "seconds": 0.01, "loss_finite": True, "moved": True, "words": words}
    writer.append(record("observation", cell, **about, **facts))
    if action == "differ":
        pytest.fail("not as declared", pytrace=False)
