"""Every configuration does what its failure's declared trigger says: the project's central test, run in every cell."""

from __future__ import annotations

import pytest

from repro.catalog import find
from repro.observe.observer import Observer
from repro.vocabulary import Trial


def test_outcome_is_the_one_that_the_trigger_predicts(trial: Trial, observer: Observer) -> None:
    failure = find(trial.failure)
    expected = failure.trigger.predict(trial.configuration, trial.scope, observer.mechanism(failure.id))
    facts = observer.observe(trial)
    observed = failure.outcome(facts)
    if observed == "skipped":
        pytest.skip(facts["detail"])
    if expected is not None and observed != expected:
        error = facts.get("exception")
        lines = [
            f"{failure.id} is not as declared in {observer.cell['cell']}",
            f"  configuration: {failure.deviations(trial.configuration) or 'the plain run'} ({trial.scope})",
            f"  expected:      {expected}",
            f"  observed:      {observed}",
            *([f"  error:         {error['type']}: {error['message'][:300]}"] if error else []),
            *([f"  gradients:     {facts['gradients']}"] if "gradients" in facts else []),
            f"  run it again:  {observer.rerun_command(trial)}",
        ]
        pytest.fail("\n".join(lines), pytrace=False)
