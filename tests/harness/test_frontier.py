"""The search for a frontier: its strategy on synthetic releases, its reading of stored observations, its command."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from repro.catalog import find
from repro.cells.releases import SelectionError, table
from repro.commands import Stop, build_app
from repro.frontier import strategy
from repro.frontier.axis import axis as axis_of
from repro.frontier.question import ABSENT, AFFECTED, GOOD, Question, QuestionError, question
from repro.frontier.report import lines, report
from repro.frontier.search import Axis, Found, search
from repro.memory import budgets
from repro.store.reader import read
from repro.store.records import Record, record
from repro.store.writer import Writer
from repro.vocabulary import Configuration

WHISPER = find("whisper-double-backward")


# The strategy


def explore(
    truth: Sequence[Any], *, at_a_time: int = 2, resolution: int = 8, exhaustive: bool = False
) -> dict[int, Any]:
    """Let the strategy look at releases that are what `truth` says."""
    seen: dict[int, Any] = {}
    while wanted := strategy.next_probes(
        len(truth), seen, at_a_time=at_a_time, resolution=resolution, exhaustive=exhaustive
    ):
        assert len(set(wanted)) == len(wanted) <= at_a_time
        assert not set(wanted) & set(seen)
        seen |= {position: truth[position] for position in wanted}
    return seen


def edges(truth: Sequence[Any]) -> list[tuple[int, int]]:
    usable = [position for position, value in enumerate(truth) if value is not None]
    return [(a, b) for a, b in itertools.pairwise(usable) if truth[a] != truth[b]]


@st.composite
def one_stretch(draw: st.DrawFn, resolution: int = 8) -> tuple[list[Any], int]:
    count = draw(st.integers(2, 140))
    first = draw(st.integers(0, count - 1))
    length = draw(st.integers(min(resolution, count - first), count - first))
    return [AFFECTED if first <= n < first + length else GOOD for n in range(count)], length


@settings(max_examples=200, deadline=None)
@given(one_stretch(), st.integers(1, 3))
def test_a_stretch_as_long_as_the_resolution_is_found_and_both_its_edges_are_proved(
    case: tuple[list[Any], int], at_a_time: int
) -> None:
    truth, length = case
    seen = explore(truth, at_a_time=at_a_time)
    if length >= 8 or truth[0] == AFFECTED or truth[-1] == AFFECTED:
        found = [gap for gap in strategy.gaps(seen) if gap.differs]
        assert [(gap.left, gap.right) for gap in found] == edges(truth)
        assert all(gap.right == gap.left + 1 for gap in found)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 105), st.integers(20, 60))
def test_a_stretch_of_twenty_releases_among_125_takes_18_cells_at_most(first: int, length: int) -> None:
    truth = [AFFECTED if first <= n < first + length else GOOD for n in range(125)]
    assert len(explore(truth)) <= 18


MARKS = st.sampled_from((AFFECTED, GOOD, GOOD, GOOD, None))


@settings(max_examples=200, deadline=None)
@given(st.lists(MARKS, min_size=1, max_size=60), st.integers(1, 3))
def test_whatever_the_releases_are_every_edge_between_observed_ones_is_driven_to_neighbours(
    truth: list[Any], at_a_time: int
) -> None:
    seen = explore(truth, at_a_time=at_a_time)
    assert all(not gap.unseen for gap in strategy.gaps(seen) if gap.differs)
    # No change is ever claimed that is not there.
    real = edges(truth)
    assert all((gap.left, gap.right) in real for gap in strategy.gaps(seen) if gap.differs)


@settings(max_examples=100, deadline=None)
@given(st.lists(MARKS, min_size=1, max_size=40))
def test_exhaustive_looks_at_every_release_and_finds_every_edge(truth: list[Any]) -> None:
    seen = explore(truth, exhaustive=True)
    assert seen == dict(enumerate(truth))
    assert [(gap.left, gap.right) for gap in strategy.gaps(seen) if gap.differs] == edges(truth)


@given(st.integers(1, 140))
def test_without_a_change_the_search_ends_with_no_wide_stretch_unseen(count: int) -> None:
    seen = explore([GOOD] * count)
    assert all(len(gap.unseen) < 8 for gap in strategy.gaps(seen))
    assert len(seen) <= 2 + math.ceil(count / 4)


def test_what_is_known_already_is_not_asked_for_again() -> None:
    truth = [GOOD] * 50 + [AFFECTED] * 20 + [GOOD] * 50
    known = {0: GOOD, 119: GOOD, 49: GOOD, 50: AFFECTED, 69: AFFECTED, 70: GOOD}
    assert strategy.next_probes(len(truth), known) == []


def test_an_end_beyond_what_is_known_is_looked_at_itself_first() -> None:
    assert strategy.next_probes(9, {3: GOOD, 6: GOOD}) == [0, 8]


def test_ends_that_cannot_be_looked_at_give_way_to_their_neighbours() -> None:
    assert strategy.next_probes(5, {0: None, 4: None}) == [1, 3]


@given(st.integers(0, 125))
def test_many_releases_that_cannot_be_installed_cost_few_tries_and_the_first_usable_one_is_found(broken: int) -> None:
    truth = [None] * broken + [GOOD] * (125 - broken)
    seen = explore(truth, resolution=200)
    assert sum(value is None for value in seen.values()) <= 15
    if broken < 125:
        assert min(position for position, value in seen.items() if value) == broken


def test_a_failure_whose_trials_measure_no_peak_has_no_frontier_of_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    axis = Axis("transformers", tuple(VERSIONS), (), {})
    with pytest.raises(QuestionError, match="do not measure a peak"):
        search(question(WHISPER, peak="plain"), axis, bench.look, bench.records)
    assert len(bench.looked) == 2


def test_a_peak_that_moved_is_found_between_neighbours(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])

    def look(versions: Sequence[str]) -> Mapping[str, str]:
        for version in versions:
            peak = 1000 + VERSIONS.index(version) % 7 + 500 * (VERSIONS.index(version) >= 33)
            bench.observe(version, WHISPER.reported, {**TRAINS, "peak_bytes": peak})
        return {}

    axis = Axis("transformers", tuple(VERSIONS), (), {})
    told = report(search(question(WHISPER, peak="reported"), axis, look, bench.records))
    assert [(edge["from"], edge["to"]) for edge in told["edges"]] == [(VERSIONS[32], VERSIONS[33])]
    assert any(re.search(r"\(1,00\d bytes\) -> \S+ \(1,50\d bytes\): proved", line) for line in lines(told))


# Reading what is stored

TRAINS: dict[str, Any] = {"end": "completed", "gradients": {}, "loss_finite": True, "moved": True}
RAISES: dict[str, Any] = {
    "end": "raised",
    "exception": {"type": "RuntimeError", "bases": [], "message": "Trying to backward through the graph a second time"},
}
OTHER: dict[str, Any] = {"end": "raised", "exception": {"type": "ImportError", "bases": [], "message": "needs more"}}


class Bench:
    """Stores what synthetic releases would observe, and counts how often each was looked at."""

    def __init__(self, directory: Path, affected: Sequence[str], broken: Mapping[str, str] | None = None) -> None:
        self.directory, self.affected, self.broken = directory, affected, broken or {}
        self.looked: list[str] = []

    def look(self, versions: Sequence[str]) -> Mapping[str, str]:
        for version in versions:
            self.looked.append(version)
            if version not in self.broken:
                self.observe(version, WHISPER.configuration(), TRAINS)
                self.observe(version, WHISPER.reported, RAISES if version in self.affected else TRAINS)
        return {version: self.broken[version] for version in versions if version in self.broken}

    def observe(self, version: str, configuration: Configuration, facts: Mapping[str, Any], cell: str = "") -> None:
        trial = WHISPER.trial(configuration)
        cell = cell or f"cell-{version}"
        about = {"failure": WHISPER.id, "trial": trial.id, "scope": trial.scope, "configuration": dict(configuration)}
        versions = {"transformers": version, "torch": "2.13.0+cpu", "device": "cpu"}
        writer = Writer(self.directory)
        writer.append(record("observation", cell, **about, **versions, **facts))
        writer.close()

    def search(self, versions: Sequence[str], yanked: Sequence[str] = (), **options: Any) -> Found:
        axis = Axis(
            "transformers",
            tuple(v for v in versions if v not in yanked),
            tuple(yanked),
            {"torch": "2.13.0", "device": "cpu"},
        )
        return search(Question(WHISPER, name=WHISPER.id), axis, self.look, self.records, **options)

    def records(self) -> Sequence[Record]:
        return read(self.directory).records if list(self.directory.glob("*.jsonl")) else ()


VERSIONS = [f"4.{minor}.{patch}" for minor in range(30) for patch in range(3)]


def test_the_report_names_both_edges_and_what_is_only_interpolated(tmp_path: Path) -> None:
    affected = VERSIONS[40:61]
    bench = Bench(tmp_path, affected)
    told = report(bench.search(VERSIONS))
    assert (told["last_good_before"], told["first_affected"]) == (VERSIONS[39], VERSIONS[40])
    assert (told["last_affected"], told["first_good_after"]) == (VERSIONS[60], VERSIONS[61])
    assert told["proved"]
    probed = [probe["version"] for probe in told["probed"]]
    assert sorted(probed) == sorted(bench.looked)
    assert len(probed) <= 18
    assert set(probed) | set(told["interpolated"]) == set(VERSIONS)
    assert not set(probed) & set(told["interpolated"])


def test_the_search_begins_at_both_ends_and_takes_no_release_that_a_claim_names_on_trust(tmp_path: Path) -> None:
    named = {version.rstrip(".*") for claim in WHISPER.claims for version in claim.pin.values()}
    versions = [f"4.{minor}.{patch}" for minor in range(36, 58) for patch in range(4)]
    assert named & set(versions)
    bench = Bench(tmp_path, versions[10:20])
    found = bench.search(versions)
    assert found.rounds[0] == (versions[0], versions[-1])
    assert report(found)["first_affected"] == versions[10]


def test_a_second_search_observes_nothing_anew(tmp_path: Path) -> None:
    Bench(tmp_path, VERSIONS[40:61]).search(VERSIONS)
    again = Bench(tmp_path, VERSIONS[40:61])
    told = report(again.search(VERSIONS))
    assert again.looked == []
    assert told["first_affected"] == VERSIONS[40]
    assert all(probe["reused"] for probe in told["probed"])


def test_what_was_observed_before_spares_the_search_for_the_affected_stretch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS[40:42])
    bench.look([VERSIONS[0], VERSIONS[41], VERSIONS[-1]])
    bench.looked.clear()
    told = report(bench.search(VERSIONS))
    assert (told["first_affected"], told["last_affected"]) == (VERSIONS[40], VERSIONS[41])
    assert len(bench.looked) <= 12


def test_a_release_that_may_not_be_looked_at_leaves_its_edge_open(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS[40:61])
    told = report(bench.search(VERSIONS, unusable={VERSIONS[40]: "not cached"}))
    assert told["first_affected"] == VERSIONS[41]
    assert VERSIONS[40] not in bench.looked
    assert not told["proved"]


def test_several_affected_stretches_that_were_seen_are_all_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [*VERSIONS[10:30], *VERSIONS[50:70]])
    told = report(bench.search(VERSIONS, exhaustive=True))
    values = [(s["value"], s["first"], s["last"]) for s in told["stretches"] if s["value"] == AFFECTED]
    assert values == [(AFFECTED, VERSIONS[10], VERSIONS[29]), (AFFECTED, VERSIONS[50], VERSIONS[69])]
    assert len(told["edges"]) == 4


def test_a_release_that_cannot_be_installed_leaves_its_edge_open_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS[40:61], {VERSIONS[39]: "resolve: no wheel for this Python"})
    told = report(bench.search(VERSIONS))
    assert told["last_good_before"] == VERSIONS[38]
    assert not told["proved"]
    [edge] = [edge for edge in told["edges"] if not edge["proved"]]
    assert edge["open"] == [VERSIONS[39]]
    assert told["skipped"] == {VERSIONS[39]: "resolve: no wheel for this Python"}
    assert any("no wheel" in line for line in lines(told))


def test_a_yanked_release_between_two_observed_ones_leaves_nothing_open(tmp_path: Path) -> None:
    told = report(Bench(tmp_path, VERSIONS[40:61]).search(VERSIONS, [VERSIONS[39]]))
    assert told["proved"]
    assert [edge["yanked"] for edge in told["edges"]] == [[VERSIONS[39]], []]
    assert told["skipped"] == {VERSIONS[39]: "yanked from the index"}


def test_contradictory_observations_of_a_release_are_shown_and_not_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS[40:61])
    for facts in (TRAINS, RAISES):
        bench.observe(VERSIONS[0], WHISPER.reported, facts)
    bench.observe(VERSIONS[0], WHISPER.configuration(), TRAINS)
    told = report(bench.search(VERSIONS))
    [torn] = told["contradictions"]
    assert torn["version"] == VERSIONS[0]
    assert len(torn["evidence"][WHISPER.trial(WHISPER.reported).id]) == 2
    assert told["stretches"][0]["first"] == VERSIONS[1]


def test_cells_of_one_release_that_disagree_are_a_contradiction(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    for cell, facts in (("one", TRAINS), ("other", RAISES)):
        bench.observe(VERSIONS[0], WHISPER.configuration(), TRAINS, cell)
        bench.observe(VERSIONS[0], WHISPER.reported, facts, cell)
    [torn] = bench.search(VERSIONS[:1]).contradictions
    assert "affected in other" in torn.answer.why


def test_a_release_known_to_say_nothing_is_not_known_in_words(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS[2:4])
    bench.observe(VERSIONS[1], WHISPER.configuration(), RAISES)
    bench.observe(VERSIONS[1], WHISPER.reported, RAISES)
    text = "\n".join(lines(report(bench.search(VERSIONS[:4]))))
    assert f"observed before: {VERSIONS[1]} not known" in text
    assert "None" not in text


def test_a_release_whose_plain_run_fails_is_neither_good_nor_affected(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    bench.observe(VERSIONS[0], WHISPER.configuration(), OTHER)
    bench.observe(VERSIONS[0], WHISPER.reported, OTHER)
    found = bench.search(VERSIONS[:1])
    assert found.seen == {0: None}
    assert "needs more" in found.unusable[VERSIONS[0]]


def test_releases_without_the_model_are_a_stretch_of_their_own_and_its_edge_is_proved(tmp_path: Path) -> None:
    omniasr = find("omniasr-silent-gradient-loss")
    versions = [f"5.{minor}.0" for minor in range(20)]
    lost = {**TRAINS, "gradients": {"missing": ["conv.weight"], "worst_ratio": 0.0}}

    def look(asked: Sequence[str]) -> Mapping[str, str]:
        writer = Writer(tmp_path)
        for version in asked:
            has = versions.index(version) >= 13
            about = {"failure": omniasr.id, "transformers": version, "torch": "2.13.0+cpu", "device": "cpu"}
            writer.append(record("mechanism", version, **about, mechanism={"in_release": has}))
            for configuration in (omniasr.configuration(), omniasr.reported):
                trial = omniasr.trial(configuration)
                facts = (lost if configuration == omniasr.reported else TRAINS) if has else {"end": "skipped"}
                run = {"trial": trial.id, "scope": trial.scope, "configuration": dict(configuration)}
                writer.append(record("observation", version, **about, **run, **facts))
        writer.close()
        return {}

    axis = Axis("transformers", tuple(versions), (), {"torch": "2.13.0", "device": "cpu"})
    stored = lambda: read(tmp_path).records if list(tmp_path.glob("*.jsonl")) else ()  # noqa: E731
    told = report(search(question(omniasr), axis, look, stored))
    assert (told["first_affected"], told["last_affected"], told["last_good_before"]) == ("5.13.0", "5.19.0", None)
    assert [(edge["from"], edge["before"], edge["proved"]) for edge in told["edges"]] == [("5.12.0", ABSENT, True)]


def test_observations_with_another_torch_are_not_of_this_search(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    axis = Axis("transformers", tuple(VERSIONS[:2]), (), {"torch": "2.5.1", "device": "cpu"})
    bench.look(VERSIONS[:2])
    asked: list[str] = []

    def look(versions: Sequence[str]) -> Mapping[str, str]:
        asked.extend(versions)
        return {}

    search(Question(WHISPER), axis, look, lambda: read(tmp_path).records)
    assert asked == VERSIONS[:2]


def test_peaks_within_two_percent_are_alike() -> None:
    peaks = question(WHISPER, peak="reported")
    assert peaks.same(1000, 1015)
    assert not peaks.same(1000, 1030)


def test_a_claim_needs_the_trials_that_its_verdict_needs_and_no_others() -> None:
    asked = question(WHISPER, "W1")
    changed = WHISPER.reported.but(checkpointing="arguments")
    assert asked.configurations == (WHISPER.reported, changed)


def test_every_budget_of_the_file_can_be_asked_for_by_its_trial_and_by_its_run() -> None:
    named = {(key.failure, key.trial, budget.run) for key, budget in budgets.read(Path("budgets.toml")).items()}
    assert named
    for failure, trial, run in named:
        for name in (trial, run):
            asked = question(find(failure), peak=name)
            assert asked.trials == (trial,), name


def test_an_unknown_budget_is_refused_with_what_there_is() -> None:
    with pytest.raises(QuestionError, match=r"'reported'.*callback-eval-oom.trainer"):
        question(find("callback-eval-oom"), peak="nonsense")


@pytest.mark.parametrize(("claim", "message"), [("W99", "it has: W1"), ("pin-4.51.3", "another release")])
def test_a_claim_that_has_no_frontier_is_refused_with_what_there_is(claim: str, message: str) -> None:
    with pytest.raises(QuestionError, match=message):
        question(WHISPER, claim)


# The command, on stored observations alone


def call(*words: str) -> Any:
    return CliRunner().invoke(build_app(), ["frontier", WHISPER.id, "--offline", *words])


@pytest.fixture
def no_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("REPRO_CELLS", str(tmp_path / "cells"))
    return tmp_path / "results"


def test_a_failure_that_was_never_seen_is_said_plainly_and_ends_with_1(no_cells: Path) -> None:
    Bench(no_cells, []).look(["4.51.0", "4.51.1", "4.51.2", "4.51.3"])
    done = call("--results", str(no_cells), "--torch", "2.13.0", "--transformers", ">=4.51.0,<=4.51.3")
    assert isinstance(done.exception, Stop)
    assert done.exception.code == 1
    assert "never seen in 4.51.0 to 4.51.3" in str(done.exception)


def test_the_command_prints_the_frontier_for_programs(no_cells: Path) -> None:
    Bench(no_cells, ["4.51.2", "4.51.3"]).look(["4.51.0", "4.51.1", "4.51.2", "4.51.3"])
    done = call("--results", str(no_cells), "--torch", "2.13.0", "--transformers", ">=4.51.0,<=4.51.3", "--json")
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)
    keys = ("failure", "first_affected", "last_affected", "last_good_before", "first_good_after")
    assert [told[key] for key in keys] == [WHISPER.id, "4.51.2", "4.51.3", "4.51.1", None]


def test_the_command_ends_with_1_on_a_contradiction_and_shows_all_evidence(no_cells: Path) -> None:
    bench = Bench(no_cells, ["4.51.2"])
    bench.look(["4.51.0", "4.51.1", "4.51.2", "4.51.3"])
    bench.observe("4.51.2", WHISPER.reported, TRAINS)
    done = call("--results", str(no_cells), "--torch", "2.13.0", "--transformers", ">=4.51.0,<=4.51.3")
    assert isinstance(done.exception, Stop)
    assert done.exception.code == 1
    assert "contradict each other in 4.51.2" in str(done.exception)
    trial = WHISPER.trial(WHISPER.reported).id
    both = [r["id"] for r in bench.records() if r["trial"] == trial and r["transformers"] == "4.51.2"]
    assert len(both) == 2
    assert all(record in done.stdout for record in both)


def test_the_command_ends_with_3_when_an_edge_stays_open_and_names_what_lies_in_it(no_cells: Path) -> None:
    Bench(no_cells, ["4.51.2", "4.51.3"]).look(["4.51.0", "4.51.2", "4.51.3"])
    done = call("--results", str(no_cells), "--torch", "2.13.0", "--transformers", ">=4.51.0,<=4.51.3")
    assert isinstance(done.exception, Stop)
    assert done.exception.code == 3
    assert "4.51.0 (good) -> 4.51.2 (affected): open: 4.51.1" in done.stdout


@pytest.mark.parametrize(("package", "within"), [("torch", ">=2.7,<2.10"), ("accelerate", ">=1.0,<1.3")])
def test_a_range_bounds_the_search_along_any_package(package: str, within: str) -> None:
    what, _ = axis_of(table(), package, within=within, torch="" if package == "torch" else "2.13.0")
    assert len(what.versions) > 2
    assert all(SpecifierSet(within).contains(version) for version in what.versions)


def test_a_range_without_a_version_is_refused_with_what_there_is() -> None:
    with pytest.raises(SelectionError, match=r"no torch is within >=9; there are 2\.0\.0 to"):
        axis_of(table(), "torch", within=">=9")


def test_without_any_usable_release_nothing_was_found_out(no_cells: Path) -> None:
    done = call("--results", str(no_cells), "--transformers", ">=4.51.0,<=4.51.1")
    assert isinstance(done.exception, Stop)
    assert done.exception.code == 3
    assert "not cached" in str(done.exception)
