"""Every entry of the catalogue holds together, and the vocabulary keeps what it promises."""

from __future__ import annotations

import dataclasses
import itertools
import pkgutil
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import repro.catalog
from repro.catalog import UnknownFailureError, failures, find
from repro.observe import choose
from repro.vocabulary import Factor, Failure, Level

ENTRIES = list(failures().values())
entries = pytest.mark.parametrize("failure", ENTRIES, ids=[entry.id for entry in ENTRIES])


def test_every_file_of_the_catalogue_is_found() -> None:
    assert len(ENTRIES) == len(list(pkgutil.iter_modules(repro.catalog.__path__)))


@entries
def test_ids_are_slugs_and_unique_among_claims_and_factors(failure: Failure) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", failure.id)
    for names in ([c.id for c in failure.claims], [f.name for f in failure.factors], [s.id for s in failure.sources]):
        assert len(names) == len(set(names))


@entries
def test_every_claim_names_a_source_that_is_declared_and_can_be_judged(failure: Failure) -> None:
    sources = {source.id for source in failure.sources}
    for claim in failure.claims:
        assert claim.source in sources, claim.id
        if claim.kind == "statement":
            assert claim.holds, claim.id
        else:
            assert bool(claim.change) != bool(claim.pin), claim.id


@entries
def test_everything_that_a_claim_names_is_a_configuration(failure: Failure) -> None:
    for configuration in choose.claimed(failure):
        assert failure.configuration(**dict(configuration)) == configuration
        assert failure.allows(configuration), failure.deviations(configuration)


@entries
def test_the_plain_run_is_predicted_to_train_and_the_trigger_is_said_in_words(failure: Failure) -> None:
    assert len(failure.trigger.says) > 40
    assert all(symptom.says for symptom in failure.symptoms)


@entries
@pytest.mark.parametrize("trial_set", choose.TRIAL_SETS)
def test_no_trial_is_chosen_twice_and_the_reported_one_always_is(failure: Failure, trial_set: choose.TrialSet) -> None:
    chosen = choose.trials(failure, trial_set)
    assert len({(trial.scope, trial.configuration) for trial in chosen}) == len({trial.id for trial in chosen})
    if trial_set != "budgeted" or failure.budgeted:
        assert failure.trial(failure.reported) in chosen or not failure.runs_on(failure.reported, "cpu")


@entries
def test_what_has_a_budget_is_in_every_set_and_nothing_else_in_its_own(failure: Failure) -> None:
    own = choose.trials(failure, "budgeted")
    assert [trial.configuration for trial in own] == list(failure.budgeted)
    assert all(failure.allows(configuration) for configuration in failure.budgeted)
    for trial_set in choose.TRIAL_SETS:
        assert set(own) <= set(choose.trials(failure, trial_set))


@entries
def test_every_pair_of_levels_that_the_constraints_allow_meets_in_the_covering_array(failure: Failure) -> None:
    for scope in failure.pairwise_scopes:
        array = choose.pairwise(failure, scope)
        levels = {factor.name: factor.levels_at(scope) for factor in failure.factors_at(scope)}
        met = {pair for configuration in array for pair in choose.pairs_in(levels, configuration)}
        assert all(failure.allows(configuration) for configuration in array)
        unmet = {
            frozenset(((one, a), (other, b)))
            for one, other in itertools.combinations(levels, 2)
            for a, b in itertools.product(levels[one], levels[other])
        } - {frozenset(pair) for pair in met}
        rng = random.Random(1)
        for _ in range(3000):
            drawn = failure.configuration(**{name: rng.choice(choices) for name, choices in levels.items()})
            if failure.allows(drawn):
                assert not any(pair <= set(drawn.items()) for pair in unmet), failure.deviations(drawn)


def test_an_unknown_failure_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownFailureError, match="Did you mean whisper-double-backward"):
        find("whisper-double-backwards")


def test_an_unknown_factor_or_level_is_refused_with_those_that_exist() -> None:
    whisper = find("whisper-double-backward")
    with pytest.raises(ValueError, match="no factor 'colour'; it has: checkpointing"):
        whisper.configuration(colour="red")
    with pytest.raises(ValueError, match="no level 'maybe'; it has: 'off'"):
        whisper.configuration(checkpointing="maybe")


@given(st.data())
def test_a_trial_keeps_its_id_when_a_factor_is_added(data: st.DataObject) -> None:
    whisper = find("whisper-double-backward")
    levels: dict[str, Level] = {f.name: data.draw(st.sampled_from(f.levels), f.name) for f in whisper.factors}
    more = dataclasses.replace(whisper, factors=(*whisper.factors, Factor("weather", ("dry", "rain"), "added later")))
    old, new = whisper.trial(whisper.configuration(**levels)), more.trial(more.configuration(**levels))
    assert old.id == new.id
    assert more.trial(more.configuration(**levels, weather="rain")).id != old.id
