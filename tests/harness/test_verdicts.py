"""Verdicts are pure functions of observations: every verdict is reached, and nothing unseen becomes one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog import find
from repro.judge.verdicts import VERDICTS, verdicts
from repro.store.records import record
from repro.vocabulary import UNFINISHED, Claim, Configuration

WHISPER = find("whisper-double-backward")
DOUBLE = {
    "end": "raised",
    "exception": {"type": "RuntimeError", "bases": [], "message": "Trying to backward through the graph a second time"},
    "evaluations": 0,
    "generations": 0,
}
NO_GRADIENT = {
    "end": "raised",
    "exception": {
        "type": "RuntimeError",
        "bases": [],
        "message": "element 0 of tensors does not require grad and does not have a grad_fn",
    },
}
FINE = {"end": "completed", "gradients": {"missing": [], "worst_ratio": 0.1}, "loss_finite": True, "moved": True}
REFUSED = {"end": "refused", "exception": {"type": "RefusedError", "bases": [], "message": "no argument"}}


def seen(configuration: Configuration, facts: dict[str, Any], release: str = "4.53.3", **more: str) -> dict[str, Any]:
    where = {"transformers": release, "torch": "2.13.0", "device": "cpu", **more}
    cell = "-".join(where.values())
    trial = WHISPER.trial(configuration)
    return record("observation", cell, failure=WHISPER.id, trial=trial.id, scope=trial.scope, **where, **facts)


def verdict_of(claim: str, *records: dict[str, Any], release: str = "4.53.3") -> Any:
    rows = [row for row in verdicts(WHISPER, records) if row["claim"] == claim and row["transformers"] == release]
    assert len(rows) == 1
    return rows[0]


ADVISED = WHISPER.reported.but(use_reentrant="False")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (DOUBLE, FINE, "resolves"),
        (DOUBLE, DOUBLE, "no effect"),
        ({**DOUBLE, "peak_bytes": 100}, {**DOUBLE, "peak_bytes": 50}, "partly"),
        ({**DOUBLE, "peak_bytes": 100}, {**DOUBLE, "peak_bytes": 99}, "no effect"),
        (DOUBLE, NO_GRADIENT, "moves it"),
        (DOUBLE, REFUSED, "unavailable"),
        (FINE, FINE, "not needed"),
        (FINE, DOUBLE, "not needed"),
    ],
)
def test_advice_gets_the_verdict_that_its_two_outcomes_amount_to(
    before: dict[str, Any], after: dict[str, Any], verdict: str
) -> None:
    row = verdict_of("use-reentrant-false", seen(WHISPER.reported, before), seen(ADVISED, after))
    assert row["verdict"] == verdict


@pytest.mark.parametrize(
    ("before", "after", "verdict", "detail"),
    [
        (DOUBLE, FINE, "resolves", "double backward -> trains"),
        (DOUBLE, DOUBLE, "no effect", "still: double backward"),
        ({**DOUBLE, "peak_bytes": 100}, {**DOUBLE, "peak_bytes": 98}, "partly", "peak 100 -> 98 bytes, still: double"),
        (
            DOUBLE,
            NO_GRADIENT,
            "moves it",
            "double backward -> loss has no gradient: RuntimeError: element 0 of tensors",
        ),
        (DOUBLE, {**FINE, "moved": False}, "moves it", "double backward -> parameters do not move"),
        (DOUBLE, REFUSED, "unavailable", "RefusedError: no argument"),
        (FINE, DOUBLE, "not needed", "the reported run trains here"),
        (REFUSED, FINE, None, "the reported run does not get as far as the failure here: RefusedError: no argument"),
        ({"end": "crashed", "detail": "signal 11"}, FINE, None, "without the advice: crashed: signal 11"),
        ({"end": "crashed"}, FINE, None, "without the advice: crashed"),
    ],
)
def test_a_verdict_says_what_it_comes_from_and_shows_its_evidence(
    before: dict[str, Any], after: dict[str, Any], verdict: str | None, detail: str
) -> None:
    records = [seen(WHISPER.reported, before), seen(ADVISED, after)]
    row = verdict_of("use-reentrant-false", *records)
    assert row["verdict"] == verdict
    assert row["detail"].startswith(detail)
    assert row["evidence"] == tuple(each["id"] for each in records)
    assert (row["peak_before"], row["peak_after"]) == (before.get("peak_bytes"), after.get("peak_bytes"))
    assert (row["failure"], row["device"], row["spelling"]) == (WHISPER.id, "cpu", "as written")


def test_advice_whose_argument_was_renamed_is_judged_in_both_spellings() -> None:
    claim = Claim("c", "c", "s", change={"use_reentrant": "False"}, today={"use_reentrant": "True"})
    records = [seen(WHISPER.reported, DOUBLE), seen(ADVISED, REFUSED)]
    records.append(seen(WHISPER.reported.but(use_reentrant="True"), FINE))
    rows = verdicts(replace(WHISPER, claims=(claim,)), records)
    assert [(row["spelling"], row["verdict"]) for row in rows] == [
        ("as written", "unavailable"),
        ("today's", "resolves"),
    ]


@pytest.mark.parametrize(
    ("holds", "verdict", "detail"),
    [
        (True, "confirmed", "by the facts observed"),
        (False, "refuted", "by the facts observed"),
        (None, None, "what was observed cannot tell"),
    ],
)
def test_a_statement_is_judged_by_its_own_facts_and_shows_them(
    holds: bool | None, verdict: str | None, detail: str
) -> None:
    claim = Claim("c", "c", "s", kind="statement", looks_at=(ADVISED,), holds=lambda _: holds)
    records = [seen(WHISPER.reported, DOUBLE), seen(ADVISED, FINE)]
    [row] = verdicts(replace(WHISPER, claims=(claim,)), records)
    assert (row["verdict"], row["detail"], row["evidence"]) == (verdict, detail, (records[1]["id"],))
    [row] = verdicts(replace(WHISPER, claims=(claim,)), records[:1])
    assert (row["verdict"], row["detail"]) == (None, "did not run")
    records[0] = seen(WHISPER.reported, FINE)
    [row] = verdicts(replace(WHISPER, claims=(claim,)), records)
    assert (row["verdict"], row["detail"]) == ("not needed", "there is no failure to explain here")
    assert row["evidence"] == (records[0]["id"],)


@pytest.mark.parametrize(
    "harm",
    [
        {"gradients": {"missing": ["encoder.weight"], "worst_ratio": 0.0}},
        {"gradients": {"missing": [], "worst_ratio": 1.5}},
        {"loss_finite": False},
        {"moved": False},
    ],
    ids=["missing gradients", "wrong gradients", "loss not finite", "parameters stand still"],
)
def test_a_cure_after_which_the_run_does_not_train_is_no_cure(harm: dict[str, Any]) -> None:
    row = verdict_of("use-reentrant-false", seen(WHISPER.reported, DOUBLE), seen(ADVISED, {**FINE, **harm}))
    assert row["verdict"] == "moves it"


@pytest.mark.parametrize("end", UNFINISHED)
def test_what_did_not_run_to_its_end_is_never_a_verdict(end: str) -> None:
    for facts in (({"end": end}, FINE), (DOUBLE, {"end": end})):
        row = verdict_of("use-reentrant-false", seen(WHISPER.reported, facts[0]), seen(ADVISED, facts[1]))
        assert row["verdict"] is None
        assert end in str(row["detail"])


def test_what_was_never_run_is_no_verdict_and_says_so() -> None:
    row = verdict_of("use-reentrant-false", seen(WHISPER.reported, DOUBLE))
    assert (row["verdict"], row["detail"]) == (None, "with the advice: did not run")


def test_contradictory_observations_are_shown_with_all_evidence_and_never_averaged() -> None:
    records = [seen(WHISPER.reported, DOUBLE), seen(WHISPER.reported, FINE), seen(ADVISED, FINE)]
    row = verdict_of("use-reentrant-false", *records)
    assert row["verdict"] is None
    assert "contradictory observations: double backward, trains" in str(row["detail"])
    assert {records[0]["id"], records[1]["id"]} <= set(row["evidence"])


def test_a_stated_cause_is_refuted_by_an_error_that_comes_before_any_evaluation() -> None:
    without = next(claim for claim in WHISPER.claims if claim.id == "W4").looks_at[1]
    assert verdict_of("W4", seen(WHISPER.reported, DOUBLE), seen(without, DOUBLE))["verdict"] == "refuted"
    later = {**DOUBLE, "evaluations": 1}
    assert verdict_of("W4", seen(WHISPER.reported, later), seen(without, FINE))["verdict"] == "confirmed"
    assert verdict_of("W4", seen(WHISPER.reported, FINE), seen(without, FINE))["verdict"] == "not needed"


def test_what_only_cuda_can_show_is_not_observable_on_a_cpu() -> None:
    assert verdict_of("fp16-off", seen(WHISPER.reported, DOUBLE))["verdict"] == "not observable"


def test_a_pin_is_judged_by_the_cell_that_it_leads_to() -> None:
    here = seen(WHISPER.reported, DOUBLE)
    unknown = verdict_of("pin-4.51.3", here)
    assert (unknown["verdict"], unknown["detail"]) == (None, "no cell with transformers 4.51.3 was observed")
    there = seen(WHISPER.reported, FINE, "4.51.3")
    # Of two cells with the release, the one with this cell's torch: `a` comes before it in every other order.
    other = {**seen(WHISPER.reported, DOUBLE, "4.51.3", torch="2.7.1"), "cell": "a"}
    pinned = verdict_of("pin-4.51.3", other, here, there, release="4.53.3")
    assert pinned["verdict"] == "resolves"
    assert pinned["detail"] == "double backward -> trains (in transformers 4.51.3, torch 2.13.0)"
    assert pinned["evidence"] == (here["id"], there["id"])
    assert verdict_of("upgrade", here, seen(WHISPER.reported, DOUBLE, "4.57.6"))["verdict"] == "no effect"
    newest = [seen(WHISPER.reported, DOUBLE, "4.57.6"), seen(WHISPER.reported, FINE, "5.0.0")]
    assert verdict_of("upgrade", here, *newest)["verdict"] == "resolves"
    old_torch = seen(WHISPER.reported, DOUBLE, torch="2.7.1")
    rows = [r for r in verdicts(WHISPER, [here, old_torch]) if r["claim"] == "pin-torch"]
    assert [(row["torch"], row["verdict"]) for row in rows] == [("2.7.1", None), ("2.13.0", "no effect")]


facts = st.sampled_from([DOUBLE, NO_GRADIENT, FINE, REFUSED, {"end": "crashed"}])


@given(st.lists(st.tuples(st.sampled_from([WHISPER.reported, ADVISED]), facts), max_size=6), st.randoms())
def test_verdicts_do_not_depend_on_the_order_of_records(observed: list[Any], random: Any) -> None:
    records = [seen(configuration, one) for configuration, one in observed]
    shuffled = list(records)
    random.shuffle(shuffled)

    def judged(rows: list[Any]) -> list[Any]:
        return [(row["claim"], row["verdict"], set(row["evidence"])) for row in verdicts(WHISPER, rows)]

    assert judged(records) == judged(shuffled)
    assert {verdict for _, verdict, _ in judged(records)} <= {*VERDICTS, None}
