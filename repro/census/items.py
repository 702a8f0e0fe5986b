"""The census as pytest items, one per model family: `repro census` runs this file in the environment it judges.

An item passes when every class of its family has a result; what the results are is for the census to tell, not to
assert: a class that loses gradients is a finding, not a broken harness.
"""

from __future__ import annotations

from typing import Any

import pytest

from repro.census import verdicts
from repro.census.observer import CensusObserver


def test_every_class_of_the_family_gets_a_result(
    census_family: str, census: CensusObserver, record_property: Any
) -> None:
    """Run all classes of one family, or those that stand for it, and keep what was seen."""
    seen = census.observe(census_family)
    record_property("census", f"{census_family}: {verdicts.summary(seen)}")
    if not seen:
        pytest.skip("no class of this family says that it supports gradient checkpointing")
    by_class: dict[str, set[bool]] = {}
    for facts in seen:
        by_class.setdefault(str(facts["class"]), set()).add(facts["use_reentrant"])
    assert all(kinds == {False, True} for kinds in by_class.values()), by_class
