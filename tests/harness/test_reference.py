"""Condensing: what a night of results leaves in the reference, held against records of a few lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.store.reader import read
from repro.store.reference import LONG, MANY, CondensingError, condense, update
from repro.store.writer import Writer
from repro.vocabulary import Claim

from .records import CURED, DOUBLE, FINE, WHISPER, cell, cell_of, mechanism, night, observation

ALIKE = replace(WHISPER, claims=())


def stored(path: Path, *records: Any) -> Path:
    writer = Writer(path)
    for each in records:
        writer.append(each)
    return path


def kept(path: Path) -> list[Any]:
    return [record for record in read(path).records if record["kind"] == "observation"]


def test_a_failure_that_was_observed_again_has_its_reference_replaced_whole(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    update([WHISPER], stored(tmp_path / "old", *night("4.53.3", DOUBLE)), reference)
    assert {record["trial"] for record in kept(reference)} >= {WHISPER.trial(CURED).id}
    again = stored(tmp_path / "new", *night("4.53.3", DOUBLE)[:-1])
    assert update([WHISPER], again, reference) == [reference / f"{cell_of('4.53.3')}.jsonl"]
    assert WHISPER.trial(CURED).id not in {record["trial"] for record in kept(reference)}


def test_a_cell_that_was_not_run_again_is_not_in_the_reference_any_more(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    update([WHISPER], stored(tmp_path / "old", *night("4.52.4", DOUBLE), *night("4.53.3", DOUBLE)), reference)
    update([WHISPER], stored(tmp_path / "new", *night("4.53.3", DOUBLE)), reference)
    assert [path.stem for path in reference.iterdir()] == [cell_of("4.53.3")]


def test_a_failure_that_the_catalogue_lacks_is_kept_as_it_is(tmp_path: Path) -> None:
    foreign = {**observation("4.53.3", WHISPER.reported, DOUBLE), "failure": "another"}
    results = stored(tmp_path / "results", *night("4.53.3", DOUBLE), foreign)
    update([WHISPER], results, tmp_path / "reference")
    [found] = [record for record in kept(tmp_path / "reference") if record["failure"] == "another"]
    assert found["configuration"] == dict(WHISPER.reported)


def test_of_a_cell_what_it_is_stays_and_of_a_mechanism_the_last() -> None:
    before = {**mechanism("4.53.3", {"seen": "before"}), "time": "2026-01-01"}
    records = [*night("4.53.3", DOUBLE, {"seen": "later"}), before]
    found = condense(records, [WHISPER])
    assert {record["kind"]: record for record in found}["mechanism"]["mechanism"] == {"seen": "later"}
    [about] = [record for record in found if record["kind"] == "cell"]
    assert set(cell("4.53.3")) - set(about) == {"requested"}
    assert condense([cell("5.0.0"), mechanism("5.0.0", {})], [WHISPER]) == [], "nothing was observed there"


def test_records_without_a_meaning_for_judging_do_not_stay() -> None:
    begun = {**observation("4.53.3", CURED, {}), "kind": "started"}
    assert {record["kind"] for record in condense([begun, *night("4.53.3", DOUBLE)], [WHISPER])} == {
        "cell",
        "mechanism",
        "observation",
    }


def test_an_unfinished_trial_stays_only_where_none_of_it_was_seen_to_an_end() -> None:
    unfinished = {"end": "timed out", "detail": "x"}
    rows = [*night("4.53.3", DOUBLE), observation("4.53.3", CURED, unfinished)]
    ends = {(record["trial"], record["end"]) for record in condense(rows, [WHISPER]) if "end" in record}
    assert (WHISPER.trial(CURED).id, "timed out") not in ends
    rows = [*night("4.53.3", unfinished)]
    ends = {(record["trial"], record["end"]) for record in condense(rows, [WHISPER]) if "end" in record}
    assert (WHISPER.trial(WHISPER.reported).id, "timed out") in ends


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("x" * LONG, "x" * LONG),
        ("x" * (LONG + 1), "x" * LONG + " ..."),
        (["y" * (LONG + 1)] * (MANY + 1), ["y" * LONG + " ..."] * MANY),
        ({"deep": ["z"] * (MANY + 1)}, {"deep": ["z"] * MANY}),
        (7, 7),
        (None, None),
    ],
)
def test_long_texts_and_lists_are_cut_however_deep_they_are(value: Any, left: Any) -> None:
    [found] = condense([observation("4.53.3", CURED, FINE, extra=value)], [WHISPER])
    assert found["extra"] == left


def test_of_facts_with_parts_those_that_a_page_is_made_of_stay_and_a_fact_without_stays_whole() -> None:
    gradients = {"missing": ["w"], "digest": "d"}
    facts = {"end": "completed", "gradients": gradients, "exception": None, "proofs": "none", "pid": 7}
    [found] = condense([observation("4.53.3", CURED, facts)], [WHISPER])
    assert found["gradients"] == {"missing": ["w"]}
    assert (found["exception"], found["proofs"], "pid" in found) == (None, "none", False)


def test_a_refusal_names_the_claim_and_the_cell_that_would_be_judged_otherwise(tmp_path: Path) -> None:
    claim = Claim("looks", "c", "s", kind="statement", looks_at=(CURED,), holds=lambda f: len(f[0]["log"]) > MANY)
    rows = [*night("4.52.4", DOUBLE)[:-1], observation("4.52.4", CURED, FINE, log=[0])]
    rows += [*night("4.53.3", DOUBLE)[:-1], observation("4.53.3", CURED, FINE, log=[0] * (MANY + 1))]
    said = rf"{WHISPER.id} would be judged otherwise than the whole: claim looks in {cell_of('4.53.3')}\. Keep the fact"
    with pytest.raises(CondensingError, match=said):
        update([replace(WHISPER, claims=(claim,))], stored(tmp_path / "results", *rows), tmp_path / "reference")


def test_a_refusal_of_other_outcomes_names_the_failure(tmp_path: Path) -> None:
    shows = replace(WHISPER.symptoms[0], exception="", shows=lambda facts: len(facts.get("log", ())) > MANY)
    rows = [*night("4.53.3", DOUBLE)[:-1], observation("4.53.3", CURED, FINE, log=[0] * (MANY + 1))]
    said = rf"condensed results of {WHISPER.id} would have other outcomes than the whole\. Keep the facts"
    with pytest.raises(CondensingError, match=said):
        update([replace(ALIKE, symptoms=(shows,))], stored(tmp_path / "results", *rows), tmp_path / "reference")
    assert not (tmp_path / "reference").exists()
