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
    for why, says in (("", "needs cuda"), ("no half here", "no half here")):
        claim = Claim("c", "c", "s", change={"use_reentrant": "False"}, needs_device="cuda", why_device=why)
        failure = replace(WHISPER, claims=(claim,))
        [row] = verdicts(failure, [seen(WHISPER.reported, DOUBLE)])
        assert (row["failure"], row["verdict"], row["detail"]) == (WHISPER.id, "not observable", says)
        on_cuda = [seen(each, facts, device="cuda") for each, facts in ((WHISPER.reported, DOUBLE), (ADVISED, FINE))]
        assert [row["verdict"] for row in verdicts(failure, on_cuda)] == ["resolves"]


def test_nothing_is_needed_in_a_release_without_the_model() -> None:
    here = seen(WHISPER.reported, DOUBLE)
    absent = record("mechanism", here["cell"], failure=WHISPER.id, mechanism={"in_release": False})
    rows = [row for row in verdicts(WHISPER, [here, absent]) if row["verdict"] != "not observable"]
    assert {(row["verdict"], row["detail"]) for row in rows} == {("not needed", "this release has no such model")}
    assert len(rows) > 5
    assert {(row["failure"], row["cell"]) for row in rows} == {(WHISPER.id, here["cell"])}


def test_a_statement_without_runs_of_its_own_looks_at_its_base_or_at_the_reported_run() -> None:
    def judged(base: Configuration | None) -> list[Any]:
        claim = Claim("c", "c", "s", kind="statement", base=base, holds=lambda facts: facts[0]["end"] == "raised")
        [row] = verdicts(replace(WHISPER, claims=(claim,)), records)
        return [row["verdict"], row["evidence"]]

    other = seen(WHISPER.reported.but(attention="eager"), {**DOUBLE, "end": "completed"})
    records = [seen(WHISPER.reported, DOUBLE), other]
    assert judged(None) == ["confirmed", (records[0]["id"],)]
    assert judged(WHISPER.reported.but(attention="eager")) == ["refuted", (other["id"],)]


def test_rows_are_ordered_by_release_then_torch_as_versions_and_a_version_that_is_none_comes_first() -> None:
    places = [("4.53.3", "2.9.0"), ("4.53.3", "2.13.0"), ("4.9.0", "2.13.0"), ("odd", "2.13.0")]
    records = [seen(WHISPER.reported, DOUBLE, release, torch=torch) for release, torch in reversed(places)]
    rows = verdicts(WHISPER, records[:1] + records[2:] + records[1:2])
    found = list(dict.fromkeys((row["transformers"], row["torch"]) for row in rows))
    assert found == [("odd", "2.13.0"), ("4.9.0", "2.13.0"), ("4.53.3", "2.9.0"), ("4.53.3", "2.13.0")]
    claims = [row["claim"] for row in rows if row["transformers"] == "odd"]
    assert claims == [claim.id for claim in WHISPER.claims for _ in range(2 if claim.today else 1)]


def test_of_runs_that_agree_the_last_one_counts_and_all_are_shown() -> None:
    before = [seen(WHISPER.reported, {**DOUBLE, "peak_bytes": peak}) for peak in (100, 300, 200)]
    after = seen(ADVISED, {**DOUBLE, "peak_bytes": 190})
    row = verdict_of("use-reentrant-false", *before, after)
    assert (row["verdict"], row["peak_before"]) == ("partly", 200)
    assert row["evidence"] == tuple(each["id"] for each in (*before, after))
    late = [seen(WHISPER.reported, {"end": end, "detail": end[::-1]}) for end in ("crashed", "skipped", "timed out")]
    row = verdict_of("use-reentrant-false", *late, after)
    assert row["detail"] == "without the advice: timed out: tuo demit"
    assert row["evidence"] == tuple(each["id"] for each in (*late, after))


@pytest.mark.parametrize(
    ("exception", "told"),
    [
        ({"type": "AssertionError", "bases": [], "message": ""}, "AssertionError"),
        ({"type": "OSError", "bases": [], "message": "\nfirst\nsecond"}, "OSError: first"),
        ({"type": "OSError", "bases": [], "message": "x" * 200}, f"OSError: {'x' * 160}"),
    ],
)
def test_an_error_is_told_by_its_type_and_the_first_line_of_its_message(exception: Any, told: str) -> None:
    other = {"end": "raised", "exception": exception}
    row = verdict_of("use-reentrant-false", seen(WHISPER.reported, DOUBLE), seen(ADVISED, other))
    assert row["detail"] == f"double backward -> raises another error: {told}"
    row = verdict_of("use-reentrant-false", seen(WHISPER.reported, {"end": "refused"}))
    assert row["detail"].endswith("as far as the failure here: no exception was stored")


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
    last = verdict_of("upgrade", here)
    assert (last["verdict"], last["detail"]) == (None, "no newer release of transformers was observed")
    old_torch = seen(WHISPER.reported, DOUBLE, torch="2.7.1")
    rows = [r for r in verdicts(WHISPER, [here, old_torch]) if r["claim"] == "pin-torch"]
    assert [(row["torch"], row["verdict"]) for row in rows] == [("2.7.1", None), ("2.13.0", "no effect")]
    assert rows[0]["detail"].startswith("no cell with torch ")
    twin = {**here, "cell": "another of the same torch"}
    assert {r["verdict"] for r in verdicts(WHISPER, [here, twin]) if r["claim"] == "pin-torch"} == {None}
    between = seen(WHISPER.reported, FINE, torch="2.9.0")
    elsewhere = [
        seen(WHISPER.reported, FINE, torch="2.1.0", device="cuda"),
        seen(WHISPER.reported, FINE, "4.52.4", torch="2.2.0"),
    ]
    rows = [r for r in verdicts(WHISPER, [here, between, old_torch, *elsewhere]) if r["claim"] == "pin-torch"]
    assert [row["verdict"] for row in rows if row["cell"] == here["cell"]] == ["no effect"], "the oldest torch"


def test_a_pin_is_not_needed_where_the_run_trains_and_not_judged_where_it_did_not_run() -> None:
    there = seen(WHISPER.reported, DOUBLE, "4.51.3")
    for facts, verdict, detail in (
        (FINE, "not needed", "the reported run trains here"),
        ({"end": "crashed"}, None, "without the advice: crashed"),
    ):
        here = seen(WHISPER.reported, facts)
        row = verdict_of("pin-4.51.3", here, there)
        assert (row["verdict"], row["detail"], row["evidence"]) == (verdict, detail, (here["id"],))
        assert (row["cell"], row["failure"]) == (here["cell"], WHISPER.id)


def test_a_pin_of_two_packages_that_no_cell_has_names_both() -> None:
    claim = Claim("c", "c", "s", pin={"transformers": "4.51.3", "accelerate": "1.0.0"})
    [row] = verdicts(replace(WHISPER, claims=(claim,)), [seen(WHISPER.reported, DOUBLE)])
    assert row["detail"] == "no cell with transformers 4.51.3, accelerate 1.0.0 was observed"


def test_a_pin_with_a_base_of_its_own_is_judged_by_that() -> None:
    base = WHISPER.reported.but(attention="eager")
    claim = Claim("c", "c", "s", pin={"transformers": "4.51.3"}, base=base)
    records = [seen(each, DOUBLE) for each in (WHISPER.reported, base)]
    records += [seen(WHISPER.reported, DOUBLE, "4.51.3"), seen(base, FINE, "4.51.3")]
    row = verdicts(replace(WHISPER, claims=(claim,)), records)[-1]
    assert (row["verdict"], row["evidence"]) == ("resolves", (records[1]["id"], records[3]["id"]))


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
