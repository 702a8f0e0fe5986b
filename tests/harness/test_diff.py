"""The diff: what changed is told by its meaning, nothing is told where nothing changed, and what is told fits."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from repro.cells.releases import Release, Table
from repro.commands import Stop, build_app
from repro.memory.budgets import Budget, Key, dump
from repro.nightly import changes as kinds
from repro.nightly import tracking
from repro.nightly.changes import KINDS, Change, changes
from repro.nightly.github import GitHubError
from repro.nightly.ledger import Ledger, Line
from repro.nightly.tracking import Issue, action, issue
from repro.nightly.wording import BODY_LIMIT, as_json, code, fit, markdown, sentence, text, to_do
from repro.store.writer import Writer
from repro.vocabulary import UNFINISHED

from .records import AFFECTED, CURED, DOUBLE, FINE, TODAY, UNAFFECTED, WHISPER, night, observation

REPORTED = WHISPER.trial(WHISPER.reported).id


def diff(old: list[Any], new: list[Any], allowed: Any = None, releases: Table | None = None) -> list[Change]:
    return changes(old, new, [WHISPER], allowed or {}, releases)


def only(found: list[Change], kind: str) -> Change:
    [one] = [change for change in found if change.kind == kind]
    return one


def test_nothing_is_told_where_nothing_changed() -> None:
    assert diff(night("4.53.3", DOUBLE), night("4.53.3", DOUBLE)) == []
    assert text([]) == "nothing changed"


def test_a_failure_that_appears_is_told_with_the_command_that_shows_it() -> None:
    found = diff(night("4.53.3", FINE), night("4.53.3", DOUBLE))
    change = only(found, kinds.APPEARS)
    assert (change.before, change.after, change.declared) == ("trains", "double backward", "double backward")
    assert change.reported
    assert found[0] is change, "harm is told first"
    assert "the reported run in transformers 4.53.3" in sentence(change)
    assert "The trigger predicts it" in to_do(change)
    undeclared = only(diff(night("5.0.0", FINE, UNAFFECTED), night("5.0.0", DOUBLE, UNAFFECTED)), kinds.APPEARS)
    assert f"repro run {WHISPER.id} --trial {REPORTED}" in to_do(undeclared)


def test_a_failure_that_disappears_is_good_news_and_says_what_to_do() -> None:
    change = only(diff(night("4.53.3", DOUBLE), night("4.53.3", FINE)), kinds.DISAPPEARS)
    assert sentence(change).startswith("Good news: ")
    for part in ("narrow the trigger", 'retired="4.53.3: why"', "never used again"):
        assert part in to_do(change)
    expected = only(diff(night("4.53.3", DOUBLE), night("4.53.3", FINE, UNAFFECTED)), kinds.DISAPPEARS)
    assert "The trigger predicts it" in to_do(expected)
    assert "narrow" not in to_do(expected)


def test_a_cure_that_stopped_working_is_told_as_such() -> None:
    old, new = night("4.53.3", DOUBLE), night("4.53.3", DOUBLE)
    new[-1] = observation("4.53.3", CURED, DOUBLE)
    change = only(diff(old, new), kinds.VERDICT)
    assert (change.claim, change.before, change.after) == ("use-reentrant-false", "resolves", "no effect")
    assert "a cure that worked no longer does" in sentence(change)


@pytest.mark.parametrize("end", UNFINISHED)
def test_what_was_not_seen_to_its_end_is_no_change_of_outcome_but_told(end: str) -> None:
    found = diff(night("4.53.3", DOUBLE), night("4.53.3", {"end": end, "detail": "x"}))
    assert {change.kind for change in found} >= {kinds.UNOBSERVED, kinds.UNJUDGED}
    assert not {change.kind for change in found} & {kinds.APPEARS, kinds.DISAPPEARS, kinds.VERDICT}


def test_a_trial_that_is_gone_is_told() -> None:
    assert only(diff(night("4.53.3", DOUBLE), night("4.53.3", DOUBLE)[:-1]), kinds.UNOBSERVED).trials == (
        WHISPER.trial(CURED).id,
    )


def test_an_edge_that_moved_is_told_and_one_that_is_merely_known_better_is_not() -> None:
    old = [*night("4.52.4", FINE, UNAFFECTED), *night("4.57.6", DOUBLE)]
    moved = [*night("4.51.3", FINE, UNAFFECTED), *night("4.52.4", DOUBLE), *night("4.57.6", DOUBLE)]
    change = only(diff(old, moved), kinds.FRONTIER)
    assert change.before == "affected between 4.52.4 and 4.57.6"
    assert change.after == "affected between 4.51.3 and 4.52.4"
    closer = [*old, *night("4.53.3", DOUBLE)]
    assert {change.kind for change in diff(old, closer)} == {kinds.COVERED}
    fixed = [*old, *night("5.0.0", FINE, UNAFFECTED)]
    assert only(diff(old, fixed), kinds.FRONTIER).after == (
        "affected between 4.52.4 and 4.57.6; good between 4.57.6 and 5.0.0"
    )


def test_a_new_release_in_which_the_trigger_is_wrong_is_told() -> None:
    old = night("4.53.3", DOUBLE)
    change = only(diff(old, [*old, *night("5.0.0", FINE)]), kinds.UNDECLARED)
    assert (change.transformers, change.declared, change.after) == ("5.0.0", "double backward", "trains")
    assert "narrow the trigger" in to_do(change)


def test_cells_are_found_again_when_torch_moved() -> None:
    old = [observation("4.53.3", WHISPER.reported, FINE, torch="2.12.0")]
    new = [observation("4.53.3", WHISPER.reported, DOUBLE, torch="2.13.0")]
    change = only(diff(old, new), kinds.APPEARS)
    assert (change.torch, change.detail) == ("2.13.0", "torch 2.12.0 before")
    both = [*old, observation("4.53.3", WHISPER.reported, FINE, torch="2.11.0")]
    assert {c.kind for c in diff(both, new)} == {kinds.GONE, kinds.COVERED}


def budget(nbytes: int) -> dict[Key, Budget]:
    key = Key(WHISPER.id, REPORTED, "cpu", "4.53.3", "2.13.0")
    return {key: Budget(key, "", nbytes, 10, "", TODAY, "test")}


@pytest.mark.parametrize(
    ("old", "new", "allowed", "kind"),
    [
        (1000, 1011, 1000, kinds.BUDGET),
        (1000, 989, 1000, kinds.BUDGET),
        (1000, 1010, 1000, None),
        (1011, 1011, 1000, None),
        (989, 1011, 1000, kinds.BUDGET),
        (1000, 1021, None, kinds.PEAK),
        (1000, 979, None, kinds.PEAK),
        (1000, 1020, None, None),
    ],
)
def test_a_peak_is_told_when_it_leaves_its_budget_either_way(
    old: int, new: int, allowed: int | None, kind: str | None
) -> None:
    before, after = (night("4.53.3", FINE, UNAFFECTED, peak_bytes=peak) for peak in (old, new))
    found = diff(before, after, budget(allowed) if allowed else None)
    assert [change.kind for change in found] == ([kind] if kind else [])
    if kind:
        assert (found[0].before, found[0].after, found[0].trials) == (old, new, (REPORTED,))


@pytest.mark.parametrize(("ratio", "told"), [(0.19, False), (0.21, True), (0.0, False), (0.9, True)])
def test_gradients_that_drift_are_told_before_they_are_wrong(ratio: float, told: bool) -> None:
    drifted = {**FINE, "gradients": {"missing": [], "worst_ratio": ratio}}
    found = diff(night("5.0.0", FINE, UNAFFECTED), night("5.0.0", drifted, UNAFFECTED))
    assert [change.kind for change in found] == ([kinds.DRIFT] if told else [])


def test_what_is_told_of_each_change_is_whole() -> None:
    cured = WHISPER.trial(CURED).id
    place = f"{WHISPER.id}: %s in transformers 4.53.3 (torch 2.13.0, cpu): %s"
    drifted = night("5.0.0", FINE, UNAFFECTED)
    for row, ratio in zip(drifted[2:], (0.1, 0.31234567, 0.21), strict=True):
        row["gradients"] = {"missing": [], "worst_ratio": ratio}
    drift = only(diff(night("5.0.0", FINE, UNAFFECTED), drifted), kinds.DRIFT)
    assert (drift.before, drift.after, drift.detail) == (0.1, 0.3123, "share of the tolerance")
    assert (set(drift.trials), drift.reported) == ({REPORTED, cured}, True)
    [covered] = diff([], night("4.53.3", DOUBLE))
    assert sentence(covered) == (
        f"{WHISPER.id} is observed now in transformers 4.53.3 (torch 2.13.0, cpu): the reported run: double backward"
    )
    gone = only(diff(night("4.53.3", DOUBLE), []), kinds.GONE)
    assert (gone.failure, gone.before) == (WHISPER.id, "double backward")
    assert sentence(gone) == (
        f"{WHISPER.id} was observed before, and is not now in transformers 4.53.3 (torch 2.13.0, cpu): "
        "the reported run: double backward"
    )
    new = night("4.53.3", DOUBLE)
    new[-1] = observation("4.53.3", CURED, DOUBLE)
    verdict = only(diff(night("4.53.3", DOUBLE), new), kinds.VERDICT)
    assert sentence(verdict) == (
        f"{WHISPER.id}: use-reentrant-false: resolves -> no effect in transformers 4.53.3 (torch 2.13.0, cpu); "
        "a cure that worked no longer does (still: double backward)"
    )
    assert to_do(verdict) == f"See the evidence: repro verdicts {WHISPER.id} --json"
    unjudged = only(diff(night("4.53.3", DOUBLE), night("4.53.3", DOUBLE)[:-1]), kinds.UNJUDGED)
    assert (unjudged.failure, unjudged.claim) == (WHISPER.id, "use-reentrant-false")
    assert sentence(unjudged).endswith("(with the advice: did not run)")
    appears = only(diff(night("4.53.3", FINE), night("4.53.3", DOUBLE)), kinds.APPEARS)
    assert sentence(appears) == place % ("the reported run", "trains -> double backward; declared: double backward")
    edges = [*night("4.52.4", FINE, UNAFFECTED), *night("4.57.6", DOUBLE)]
    moved = only(diff(edges, [*edges, *night("5.0.0", FINE, UNAFFECTED)]), kinds.FRONTIER)
    assert (moved.failure, moved.transformers, moved.torch, moved.device) == (WHISPER.id, None, "2.13.0", "cpu")
    assert sentence(moved).startswith(f"{WHISPER.id} (torch 2.13.0, cpu): affected between 4.52.4 and 4.57.6 -> ")


def test_a_peak_is_told_with_what_was_allowed_and_one_alarm_hides_no_other() -> None:
    def nights(*peaks: int) -> list[Any]:
        rows = night("4.53.3", FINE, UNAFFECTED)
        return rows[:2] + [{**row, "peak_bytes": peak} for row, peak in zip(rows[2:], peaks, strict=True)]

    known = {
        key: Budget(key, "", 1000, 10, "", TODAY, "test")
        for key in (Key(WHISPER.id, row["trial"], "cpu", "4.53.3", "2.13.0") for row in nights(0, 0, 0)[2:])
    }
    for order in ((2000, 1000, 2000), (1000, 2000, 2000), (2000, 2000, 1000)):
        standing = [peak if index == order.index(2000) else 1000 for index, peak in enumerate(order)]
        found = diff(nights(*standing), nights(*order), known)
        assert [change.kind for change in found] == [kinds.BUDGET]
        assert found[0].detail == "over: allowed 1000 ± 10 bytes"
        assert to_do(found[0]).startswith("If the new peak is right: repro budgets update")
    assert (
        only(diff(nights(1000, 1000, 1000), nights(1000, 2000, 1000)), kinds.PEAK).detail == "bytes, without a budget"
    )


@pytest.mark.parametrize(
    ("change", "says", "todo"),
    [
        (
            Change(kinds.UNCOVERED, None, "9.0.0", detail="uploaded 2026-01-01"),
            "transformers 9.0.0 is out (uploaded 2026-01-01), and nothing was observed there yet",
            "repro matrix --transformers 9.0.0",
        ),
        (
            Change(kinds.PEAK, "f", "5.0.0", "2.13.0", "cpu", before=1, after=2, detail="bytes", trials=("f.t",)),
            "f: f.t in transformers 5.0.0 (torch 2.13.0, cpu): 1 -> 2 (bytes)",
            "If the new peak is right: repro budgets update, and commit the file with the reason.",
        ),
        (
            Change(kinds.DRIFT, "f", "5.0.0", configuration={"a": 1, "b": 2}, before=0.1, after=0.5, trials=("t", "u")),
            "f: a=1, b=2 and 1 more like it in transformers 5.0.0: 0.1 -> 0.5",
            "See it: repro run f --trial t",
        ),
        (
            Change(kinds.UNDECLARED, "f", "5.0.0", after="x", declared="trains", trials=("t",)),
            "f: the plain run in transformers 5.0.0: declared: trains; observed: x",
            "See it: repro run f --trial t. Then correct the trigger, or report it upstream.",
        ),
        (
            Change(kinds.UNOBSERVED, "f", "5.0.0", trials=("t",)),
            "f: the plain run in transformers 5.0.0: no outcome",
            "",
        ),
        (
            Change(kinds.COVERED, "f", "5.0.0"),
            "f is observed now in transformers 5.0.0: the reported run: no outcome",
            "",
        ),
    ],
)
def test_a_change_is_said_in_one_sentence_with_what_to_do(change: Change, says: str, todo: str) -> None:
    assert (sentence(change), to_do(change)) == (says, todo)
    assert text([change]).splitlines()[1:] == [f"  {says}", *([f"    {todo}"] if todo else [])]
    assert markdown([change]).splitlines()[2:4] == [f"* `{says}`", f"  `{todo}`" if todo else ""]


def table_of(*versions: str) -> Table:
    releases = tuple(Release(version, datetime.date(2026, 1, 1)) for version in versions)
    return Table(TODAY, {"transformers": releases})


def test_releases_that_nobody_observed_are_told_and_development_versions_cover_none() -> None:
    new = [*night("5.0.0", FINE, UNAFFECTED), *night("9.0.0.dev0", FINE, UNAFFECTED)]
    found = diff(new, new, releases=table_of("4.57.6", "5.0.0", "5.1.0", "5.1.1", "5.2.0rc1"))
    assert [(change.kind, change.transformers) for change in found] == [
        (kinds.UNCOVERED, "5.1.1"),
        (kinds.UNCOVERED, "5.2.0rc1"),
    ]


def test_a_release_whose_cell_is_lost_is_told_as_gone_and_not_as_new() -> None:
    old, new = night("5.1.0", FINE, UNAFFECTED), night("5.0.0", FINE, UNAFFECTED)
    found = diff([*old, *new], new, releases=table_of("5.0.0", "5.1.0", "5.2.0"))
    assert [change.transformers for change in found if change.kind == kinds.GONE] == ["5.1.0"]
    assert [change.transformers for change in found if change.kind == kinds.UNCOVERED] == ["5.2.0"]


facts = st.sampled_from(
    [DOUBLE, FINE, {"end": "crashed"}, {"end": "raised", "exception": None}, {**FINE, "moved": False}]
)
releases = st.sampled_from(["4.52.4", "4.53.3", "5.0.0"])
nights = st.lists(st.tuples(releases, facts, st.sampled_from([AFFECTED, UNAFFECTED])), max_size=4)


def rows(drawn: list[Any]) -> list[Any]:
    return [row for release, seen, mechanism in drawn for row in night(release, seen, mechanism)]


@settings(max_examples=40)
@given(nights, nights, st.randoms())
def test_a_diff_with_itself_is_silent_and_any_diff_is_sorted_sayable_and_blind_to_order(
    one: list[Any], other: list[Any], random: Any
) -> None:
    old, new = rows(one), rows(other)
    assert diff(old, old) == [] or {c.kind for c in diff(old, old)} <= {kinds.UNOBSERVED}
    found = diff(old, new)
    assert [KINDS.index(change.kind) for change in found] == sorted(KINDS.index(change.kind) for change in found)
    json.dumps(as_json(found), allow_nan=False)
    for change in found:
        assert sentence(change) in text(found)
    # A later record of the mechanism wins, so that order matters among those, and among those alone.
    shuffled = [row for row in old if row["kind"] == "observation"]
    plain = [row for row in old if row["kind"] != "observation"]
    random.shuffle(shuffled)
    assert {(c.kind, c.before, c.after) for c in diff(plain + shuffled, new)} == {
        (c.kind, c.before, c.after) for c in found
    }


anything = st.text(max_size=300) | st.builds(lambda t, n: t * n, st.text(min_size=1, max_size=20), st.integers(1, 9000))
change = st.builds(
    Change,
    st.sampled_from(KINDS),
    st.sampled_from(["whisper-double-backward", "x" * 300]),
    st.text(max_size=12),
    st.just("2.13.0"),
    st.just("cpu"),
    detail=anything,
    before=anything,
    trials=st.just(("t",)),
)


@settings(max_examples=15)
@given(st.lists(change, max_size=8), st.integers(1, 120), anything)
def test_the_body_of_the_issue_fits_whatever_changed(some: list[Change], times: int, reason: str) -> None:
    lines = tuple(Line(f"cell {n}", (), {"missing": 1}, (reason,)) for n in range(times))
    body = issue(Ledger(lines), some * times, reason).body
    assert len(body.encode("utf-8", "surrogatepass")) <= BODY_LIMIT
    assert len(markdown(some * times, limit=5000).encode("utf-8", "surrogatepass")) <= 5000


@given(st.lists(st.text(max_size=80), max_size=60), st.integers(200, 3000))
def test_what_does_not_fit_is_counted_and_what_fits_is_all_there(lines: list[str], limit: int) -> None:
    got = fit(lines, limit)
    assert len(got.encode("utf-8", "surrogatepass")) <= limit
    if len(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")) <= limit:
        assert got == "\n".join(lines) + "\n"
    else:
        left_out = int(got.rsplit("... and ", 1)[1].split()[0])
        kept = lines[: len(lines) - left_out]
        assert left_out > 0
        assert got.startswith("\n".join(kept))


@given(st.text())
def test_nothing_that_a_library_says_can_leave_its_code_span(said: str) -> None:
    shown = code(said)
    assert (shown[0], shown[-1]) == ("`", "`")
    assert not set("`\n\r") & set(shown[1:-1])


@pytest.mark.parametrize(
    ("known", "news", "expected"),
    [(False, False, "nothing"), (False, True, "open"), (True, True, "update"), (True, False, "close")],
)
def test_there_is_one_issue_while_there_is_news_and_none_otherwise(known: bool, news: bool, expected: str) -> None:
    assert action(known, news) == expected


def test_the_issue_is_news_when_part_of_it_did_not_run_even_if_nothing_changed() -> None:
    assert not issue(Ledger((Line("c", ("c",), {"observed": 1}, ()),)), []).news
    assert issue(Ledger(()), []).news is False
    assert issue(Ledger((), ("the plan has no cells",)), []).news
    assert issue(Ledger((Line("c", (), {"missing": 1}, ("1 missing",)),)), []).news
    assert not issue(Ledger(()), [Change(kinds.COVERED, "f", "5.0.0")]).news


@pytest.mark.parametrize(
    ("listed", "news", "verbs"),
    [
        ("[]", True, ["issue list", "label create", "issue create"]),
        ('[{"number": 7}]', True, ["issue list", "issue edit"]),
        ('[{"number": 7}]', False, ["issue list", "issue close"]),
        ("[]", False, ["issue list"]),
    ],
)
def test_posting_asks_github_for_that_and_no_more(tmp_path: Path, listed: str, news: bool, verbs: list[str]) -> None:
    said: list[list[str]] = []

    def run(words: Any) -> str:
        said.append(list(words))
        return listed

    body = str(tmp_path / "body.md")
    tracking.post(Issue(news, "title", "the body"), "o/n", tmp_path / "body.md", run)
    assert [" ".join(words[:2]) for words in said] == verbs
    assert all(words[words.index("--repo") + 1] == "o/n" for words in said)
    labelled = ["--label", "nightly"]
    asked = {words[1]: words for words in said if words[0] == "issue"}
    assert asked["list"][4:] == [*labelled, "--state", "open", "--limit", "1", "--json", "number"]
    if "create" in asked:
        assert asked["create"][4:] == [*labelled, "--title", "title", "--body-file", body]
        assert said[1][:3] + said[1][5:6] == ["label", "create", "nightly", "--force"]
    if "edit" in asked:
        assert asked["edit"][2:] == ["7", "--repo", "o/n", "--title", "title", "--body-file", body]
    if "close" in asked:
        assert asked["close"][2:6] == ["7", "--repo", "o/n", "--comment"]
    assert (tmp_path / "body.md").read_text() == "the body"


def test_an_answer_that_is_none_is_an_error_and_posts_nothing(tmp_path: Path) -> None:
    with pytest.raises(GitHubError, match="answered"):
        tracking.post(Issue(True, "t", "b"), "o/n", tmp_path / "b.md", lambda _: "what?")


def store(path: Path, records: list[Any]) -> str:
    writer = Writer(path)
    for row in records:
        writer.append(row)
    return str(path)


def repro(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(), [*words])
    if isinstance(result.exception, Stop):
        return result.exception.code, str(result.exception)
    return result.exit_code, result.stdout


def test_the_command_writes_text_markdown_and_json_and_ends_with_1_on_news(tmp_path: Path) -> None:
    old = store(tmp_path / "old", night("5.24.0", FINE, UNAFFECTED))
    new = store(tmp_path / "new", night("5.24.0", DOUBLE, UNAFFECTED))
    code, out = repro("diff", old, new, "--json")
    assert code == 1
    assert json.loads(out)[0] | {"kind": "failure appears", "failure": WHISPER.id} == json.loads(out)[0]
    assert "### Failures that appeared (1)" in repro("diff", old, new, "--markdown")[1]
    assert "Failures that appeared\n  whisper-double-backward: the reported run" in repro("diff", old, new)[1]
    assert repro("diff", old, old)[0] in (0, 1)  # 1 once a newer release is out
    assert repro("diff", old, new, "--json", "--markdown")[0] == 2


def test_the_command_holds_peaks_against_the_budgets_it_is_given_and_says_which_lines_are_no_records(
    tmp_path: Path,
) -> None:
    old, new = (
        store(tmp_path / name, night("5.24.0", FINE, UNAFFECTED, peak_bytes=peak))
        for name, peak in (("old", 1000), ("new", 1015))
    )
    key = Key(WHISPER.id, REPORTED, "cpu", "5.24.0", "2.13.0")
    file = tmp_path / "allowed.toml"
    for allowed, told in ((1000, [kinds.BUDGET]), (1010, [])):
        file.write_text(dump([Budget(key, "", allowed, 10, "", TODAY, "test")]))
        found = json.loads(repro("diff", old, new, "--budgets", str(file), "--json")[1])
        assert [row["kind"] for row in found if row["kind"] in (kinds.BUDGET, kinds.PEAK)] == told
    (tmp_path / "new" / "x.jsonl").write_text("what?\n")
    said = CliRunner().invoke(build_app(), ["diff", old, new]).stderr
    assert f"skipped a line that is no record: {tmp_path / 'new' / 'x.jsonl'}:1: not JSON" in said


def test_the_issue_is_written_where_the_results_are_and_posted_from_a_file(tmp_path: Path) -> None:
    old = store(tmp_path / "old", night("5.24.0", FINE, UNAFFECTED))
    new = store(tmp_path / "new", night("5.24.0", DOUBLE, UNAFFECTED))
    (tmp_path / "plan.json").write_text('{"include": []}')
    file = tmp_path / "issue.json"
    code, out = repro("tracking", "write", old, new, "--plan", str(tmp_path / "plan.json"), "--file", str(file))
    assert code == 0
    assert tracking.read(file).news
    assert tracking.read(file).body.strip() == out.strip()
    assert "the plan has no cells" in out
    file.write_text("{}")
    assert repro("tracking", "post", str(file), "--repository", "o/n")[0] == 3
