"""Speed, compared within one run: `pytest tests/harness/test_speed.py --benchmark-only`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.catalog import find
from repro.observe import whisper_model, whisper_trainer
from repro.observe.observer import Observer
from repro.vocabulary import Scope

WHISPER = find("whisper-double-backward")
CONFIGURATIONS = {
    "model": WHISPER.configuration(checkpointing="method", use_reentrant="False"),
    "trainer": WHISPER.configuration(
        checkpointing="arguments", use_reentrant="False", evaluation="steps", predict_with_generate="yes"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bare", "harness"])
@pytest.mark.parametrize("scope", ["model", "trainer"])
def test_the_harness_costs_little_around_a_trial(benchmark: Any, tmp_path: Path, scope: Scope, how: str) -> None:
    benchmark.group = f"{scope}: the trial itself, and the harness around it"
    configuration = CONFIGURATIONS[scope]
    observe = whisper_model.observe if scope == "model" else whisper_trainer.observe
    observer, trial = Observer(tmp_path), WHISPER.trial(configuration, scope)
    run = (lambda: observe(configuration)) if how == "bare" else (lambda: observer.observe(trial))
    facts = benchmark.pedantic(run, rounds=15 if scope == "model" else 6, warmup_rounds=2)
    assert facts["end"] == "completed"
