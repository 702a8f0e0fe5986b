"""Changes that come several at a time: each is told, none hides another, and those alike are told as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from repro.cells.releases import Release, Table
from repro.nightly import changes as kinds
from repro.nightly.changes import Change, changes
from repro.vocabulary import Configuration

from .records import (
    AFFECTED,
    CURED,
    DOUBLE,
    FINE,
    TODAY,
    UNAFFECTED,
    WHISPER,
    cell_of,
    mechanism,
    night,
    observation,
)

REPORTED = WHISPER.trial(WHISPER.reported).id
PLAIN = WHISPER.configuration()
NEAR = WHISPER.reported.but(attention="eager")
FURTHER = NEAR.but(accumulation=4)


def diff(old: list[Any], new: list[Any], releases: Table | None = None) -> list[Change]:
    return changes(old, new, [WHISPER], {}, releases)


def of_kind(found: list[Change], kind: str) -> list[Change]:
    return [change for change in found if change.kind == kind]


def runs(facts: Any, *configurations: Configuration, release: str = "4.53.3", seen: Any = None) -> list[Any]:
    rows = [observation(release, each, facts) for each in configurations]
    return [mechanism(release, AFFECTED if seen is None else seen), *rows]


def test_trials_that_changed_alike_are_one_change_named_by_the_reported_run_or_the_plainest() -> None:
    every = (FURTHER, NEAR, WHISPER.reported)
    [change] = of_kind(diff(runs(FINE, *every), runs(DOUBLE, *every)), kinds.APPEARS)
    assert change.reported
    assert change.trials == tuple(sorted(WHISPER.trial(each).id for each in every))
    assert change.configuration == WHISPER.deviations(WHISPER.reported)
    for others in ((FURTHER, NEAR), (NEAR, FURTHER)):
        [change] = of_kind(diff(runs(FINE, *others), runs(DOUBLE, *others)), kinds.APPEARS)
        assert (change.reported, change.configuration) == (False, WHISPER.deviations(NEAR))


def test_a_cell_without_a_mechanism_and_a_level_that_is_no_more_predict_nothing() -> None:
    old, new = (runs(facts, WHISPER.reported)[1:] for facts in (FINE, DOUBLE))
    [change] = of_kind(diff(old, new), kinds.APPEARS)
    assert (change.declared, change.detail) == (None, "")

    def lost(*_: object) -> str:
        raise KeyError("a level that is gone")

    wrong = replace(WHISPER, trigger=replace(WHISPER.trigger, predict=lost))
    found = changes(runs(FINE, WHISPER.reported), runs(DOUBLE, WHISPER.reported), [wrong], {})
    assert [each.declared for each in of_kind(found, kinds.APPEARS)] == [None]


def test_a_factor_that_is_declared_no_more_is_still_told() -> None:
    old, new = runs(FINE, WHISPER.reported), runs(DOUBLE, WHISPER.reported)
    for row in (old[1], new[1]):
        row |= {"trial": "gone", "configuration": {**row["configuration"], "moon": "full"}}
    [change] = of_kind(diff(old, new), kinds.APPEARS)
    assert (change.trials, change.configuration["moon"], change.reported) == (("gone",), "full", False)


def test_a_trial_that_is_new_in_a_known_cell_is_told_where_it_is_not_as_declared() -> None:
    old = runs(DOUBLE, WHISPER.reported)
    new = [*old, observation("4.53.3", PLAIN, DOUBLE), observation("4.53.3", CURED, FINE)]
    [change] = of_kind(diff(old, new), kinds.UNDECLARED)
    assert (change.trials, change.declared, change.after) == ((WHISPER.trial(PLAIN).id,), "trains", "double backward")
    unseen = [*old, observation("4.53.3", PLAIN, {"end": "crashed"})]
    assert [each.trials for each in of_kind(diff(unseen, new), kinds.UNDECLARED)] == [(WHISPER.trial(PLAIN).id,)]
    assert diff(old, unseen) == []


def test_what_was_refused_before_and_fails_now_appears_and_what_fails_otherwise_changes() -> None:
    refused = {"end": "refused", "exception": {"type": "RefusedError", "bases": [], "message": "no argument"}}
    other = {"end": "raised", "exception": {"type": "OSError", "bases": [], "message": "no"}}
    for before, after, kind in (
        (refused, DOUBLE, kinds.APPEARS),
        (DOUBLE, refused, kinds.OTHERWISE),
        (DOUBLE, other, kinds.OTHERWISE),
        (refused, FINE, kinds.DISAPPEARS),
        (FINE, refused, kinds.OTHERWISE),
    ):
        found = diff(runs(before, WHISPER.reported), runs(after, WHISPER.reported))
        assert [each.trials for each in of_kind(found, kind)] == [(REPORTED,)], (before, after)


def test_of_gradients_that_drifted_alike_one_is_named_and_all_are_counted() -> None:
    drifted = {**FINE, "gradients": {"missing": [], "worst_ratio": 0.5}}
    every = (WHISPER.reported, CURED, NEAR)
    old, new = (runs(facts, *every, seen=UNAFFECTED) for facts in (FINE, drifted))
    [change] = diff(old, new)
    assert (change.kind, len(change.trials), change.before, change.after) == (kinds.DRIFT, 3, 0.1, 0.5)
    for facts in ({**FINE, "gradients": None}, {**FINE, "gradients": {"missing": []}}):
        assert diff(runs(facts, CURED), new[:1] + new[2:3]) == diff(new[:1] + new[2:3], runs(facts, CURED)) == []


def test_the_gradients_that_moved_most_are_named_whichever_are_largest() -> None:
    def ratio(value: float) -> dict[str, Any]:
        return {**FINE, "gradients": {"missing": [], "worst_ratio": value}}

    for moved, large in ((CURED, NEAR), (NEAR, CURED)):
        old = [*runs(ratio(0.5), moved, seen=UNAFFECTED), *runs(ratio(0.7), large, seen=UNAFFECTED)]
        new = [*runs(ratio(0.1), moved, seen=UNAFFECTED), *runs(ratio(0.9), large, seen=UNAFFECTED)]
        [change] = diff(old, new)
        assert (change.before, change.after, len(change.trials)) == (0.5, 0.1, 2)
        assert change.configuration == WHISPER.deviations(moved)


def test_a_verdict_that_stands_hides_none_that_changed() -> None:
    plainer = WHISPER.reported.but(use_reentrant="True")
    old = [*night("4.53.3", DOUBLE), observation("4.53.3", plainer, FINE)]
    new = [*night("4.53.3", DOUBLE)[:-1], observation("4.53.3", CURED, DOUBLE), observation("4.53.3", plainer, DOUBLE)]
    lost = {each.claim: (each.before, each.after) for each in of_kind(diff(old, new), kinds.VERDICT)}
    assert {"use-reentrant-false", "use-reentrant-true"} <= set(lost)
    assert set(lost.values()) == {("resolves", "no effect")}


def test_two_cells_that_changed_are_told_oldest_first_and_the_reported_run_before_others() -> None:
    both = ("4.9.0", "4.53.3")
    old = [row for release in both for row in runs(FINE, WHISPER.reported, PLAIN, release=release)]
    new = [
        row
        for release in reversed(both)
        for row in [
            mechanism(release, AFFECTED),
            observation(release, PLAIN, DOUBLE),
            observation(release, WHISPER.reported, DOUBLE),
        ]
    ]
    found = of_kind(diff(old, new), kinds.APPEARS)
    assert [(each.transformers, each.reported) for each in found] == [(r, told) for r in both for told in (True, False)]


def test_cells_that_torch_left_are_paired_only_where_there_is_one_of_each() -> None:
    def at(torch: str, facts: Any, device: str = "cpu") -> Any:
        return observation("4.53.3", WHISPER.reported, facts, torch=torch, device=device)

    old = [at("2.11.0", FINE), at("2.11.0", FINE, "cuda")]
    found = diff(old, [at("2.13.0", DOUBLE, "cuda"), at("2.12.0", DOUBLE)])
    assert {(each.device, each.torch) for each in of_kind(found, kinds.APPEARS)} == {
        ("cpu", "2.12.0"),
        ("cuda", "2.13.0"),
    }
    found = diff(old[:1], [at("2.12.0", DOUBLE), at("2.13.0", DOUBLE)])
    assert {each.kind for each in found} == {kinds.GONE, kinds.COVERED}
    stayed = diff([at("2.13.0", FINE), at("2.12.0", FINE)], [at("2.13.0", FINE), at("2.14.0", DOUBLE)])
    assert [(each.torch, each.detail) for each in of_kind(stayed, kinds.APPEARS)] == [("2.14.0", "torch 2.12.0 before")]


def test_a_frontier_is_compared_on_each_torch_and_device_by_itself() -> None:
    def edge(good: str, bad: str, torch: str) -> list[Any]:
        rows = []
        for release, facts, seen in ((good, FINE, UNAFFECTED), (bad, DOUBLE, AFFECTED)):
            rows.append({**mechanism(release, seen), "cell": cell_of(release, torch)})
            rows += [observation(release, PLAIN, FINE, torch=torch)]
            rows += [observation(release, WHISPER.reported, facts, torch=torch)]
        return rows

    old = [*edge("4.52.4", "4.53.3", "2.12.0"), *edge("4.52.4", "4.53.3", "2.13.0")]
    new = [*edge("4.52.4", "4.53.3", "2.12.0"), *edge("4.51.3", "4.52.4", "2.13.0")]
    [moved] = of_kind(diff(old, new), kinds.FRONTIER)
    assert (moved.torch, moved.device) == ("2.13.0", "cpu")
    assert (moved.before, moved.after) == (
        "affected between 4.52.4 and 4.53.3",
        "affected between 4.51.3 and 4.52.4",
    )
    assert of_kind(diff(old, edge("4.52.4", "4.53.3", "2.14.0")), kinds.FRONTIER) == []


def test_a_yanked_release_is_no_release_to_cover_and_nothing_is_told_where_none_was_observed() -> None:
    def table(*yanked: str) -> Table:
        versions = ("5.0.0", "5.1.0", "5.2.0")
        return Table(TODAY, {"transformers": tuple(Release(v, TODAY, v in yanked) for v in versions)})

    new = night("5.0.0", FINE, UNAFFECTED)
    assert [(each.transformers, each.detail) for each in diff(new, new, table("5.2.0"))] == [
        ("5.1.0", "uploaded 2026-01-31")
    ]
    assert [each.transformers for each in diff(new, new, table())] == ["5.1.0", "5.2.0"]
    assert diff([], [], table()) == []


def test_a_failure_that_is_not_asked_for_is_not_told() -> None:
    foreign = [{**row, "failure": "another"} for row in night("4.53.3", DOUBLE) if "failure" in row]
    assert diff(foreign, []) == []
