"""The Markdown pages and the reference results behind them."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.__main__ import main
from repro.catalog import failures
from repro.judge.observed import cells
from repro.judge.verdicts import verdicts
from repro.observe import choose
from repro.show import markdown
from repro.show.facts import ABSENT, AFFECTED, GOOD, TOLD_FROM, Reference, stretches
from repro.show.pages import reference
from repro.store.reader import read
from repro.store.records import dump, record
from repro.store.reference import LARGEST, REFERENCE, CondensingError, condense, update
from repro.store.writer import ResultsError
from repro.vocabulary import Failure

DOCS = Path(__file__).parents[2] / "docs"
WHISPER = "whisper-double-backward"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["repro", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def stored() -> tuple[Any, ...]:
    return read(REFERENCE).records


@pytest.fixture(scope="module")
def facts(stored: tuple[Any, ...]) -> Reference:
    return reference(failures().values(), stored)


def test_docs_are_what_the_stored_reference_results_say(facts: Reference) -> None:
    wrong = markdown.out_of_step(facts, DOCS)
    assert not wrong, f"{', '.join(wrong)}: run `repro docs`"


def test_docs_out_of_step_are_told_by_name_and_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "docs", "--out", str(tmp_path)) == 0
    assert run(monkeypatch, "docs", "--out", str(tmp_path), "--check") == 0
    page = tmp_path / f"{WHISPER}.md"
    page.write_text(page.read_text("utf-8").replace("no effect", "resolves"), "utf-8")
    assert run(monkeypatch, "docs", "--out", str(tmp_path), "--check") == 1
    assert f"{WHISPER}.md" in capsys.readouterr().err


def test_a_page_of_a_failure_that_is_gone_is_removed_and_a_foreign_file_is_not(
    facts: Reference, tmp_path: Path
) -> None:
    (tmp_path / "gone.md").write_text(f"{markdown.MADE}\n# Gone\n", "utf-8")
    (tmp_path / "notes.md").write_text("# Mine\n", "utf-8")
    assert "gone.md" in markdown.out_of_step(facts, tmp_path)
    markdown.write(facts, tmp_path)
    assert not (tmp_path / "gone.md").exists()
    assert (tmp_path / "notes.md").read_text("utf-8") == "# Mine\n"


def test_pages_say_with_which_torch_on_which_date_and_device(facts: Reference) -> None:
    for name, text in markdown.documents(facts).items():
        failure = next((failure for failure in facts.failures if name == f"{failure.id}.md"), None)
        basis = failure.basis if failure else facts.basis
        if basis.observations:
            assert all(said in text for said in (*basis.torch, *basis.devices, basis.first, basis.last)), name


def test_every_verdict_of_the_reference_is_on_its_page(stored: tuple[Any, ...], facts: Reference) -> None:
    for failure, entry in zip(facts.failures, failures().values(), strict=True):
        said = {(claim.anchor, j.place.id): j.verdict for claim in failure.claims for j in claim.judged}
        rows: list[Any] = verdicts(entry, stored)
        for row in rows:
            anchor = f"claim-{row['claim']}" + ("" if row["spelling"] == "as written" else "-today")
            assert said[anchor, row["cell"]] == (row["verdict"] or "not judged")


def test_advice_in_todays_spelling_has_a_text_of_its_own(facts: Reference) -> None:
    both = [claim for failure in facts.failures for claim in failure.claims if claim.anchor.endswith("-today")]
    assert both
    for failure in facts.failures:
        said = {claim.anchor: claim.says for claim in failure.claims}
        for anchor, says in said.items():
            assert not anchor.endswith("-today") or (says and says != said[anchor.removesuffix("-today")])


def test_the_frontier_on_a_page_is_that_of_the_outcomes_seen(facts: Reference) -> None:
    seen = [failure for failure in facts.failures if failure.frontier.first_affected]
    assert seen, "the reference shows no failure at all"
    for failure in seen:
        affected = [status.place.transformers for status in failure.statuses if status.status == AFFECTED]
        assert (failure.frontier.first_affected, failure.frontier.last_affected) == (affected[0], affected[-1])
        for good in (failure.frontier.last_good_before, failure.frontier.first_good_after):
            assert not good or failure.status_in(good) in (GOOD, ABSENT)


def test_no_outcome_counts_as_the_failure_where_the_plain_run_does_not_train(stored: tuple[Any, ...]) -> None:
    entry = failures()[WHISPER]
    plain = entry.trial(entry.configuration()).id
    broken = [
        {**r, "end": "raised", "exception": {"type": "OSError", "message": "no"}} if r.get("trial") == plain else r
        for r in stored
    ]
    [page] = reference([entry], broken).failures
    assert page.frontier.sentence == "No observed release has it."
    assert {status.status for status in page.statuses} == {"not known"}


def test_the_trigger_is_contradicted_in_words_where_an_outcome_is_not_as_predicted(stored: tuple[Any, ...]) -> None:
    entry = failures()[WHISPER]
    wrong = replace(entry, trigger=replace(entry.trigger, predict=lambda *_: "trains"))
    [page] = reference([wrong], stored).failures
    assert page.trigger.differs
    assert page.trigger.differs[0] in markdown.documents(Reference((page,), (), page.basis))[f"{WHISPER}.md"].replace(
        "\\", ""
    )


def with_peaks(stored: tuple[Any, ...], *releases: str) -> list[Any]:
    """Give the observations of some cells peaks: more for what raised."""
    releases = releases or ("4.53.3",)
    peaks = {"completed": 100, "raised": 300}
    return [
        {**r, "peak_bytes": peaks[r["end"]], "capacity": 200, "memory": {"device": "emulated", "source": "allocator"}}
        if r["kind"] == "observation" and r["transformers"] in releases and r["failure"] == WHISPER
        else r
        for r in stored
    ]


@pytest.mark.parametrize("small", [0, TOLD_FROM - 1])
def test_peaks_that_differ_between_releases_are_told_with_the_functions_that_hold_the_difference(
    stored: tuple[Any, ...], small: int
) -> None:
    moved = {"4.52.4": 5000, "4.53.3": small, "4.54.1": 0}
    measured = [r for r in with_peaks(stored, *moved) if r.get("failure") == WHISPER and "peak_bytes" in r]
    records = [
        {
            **r,
            "peak_bytes": 300 + moved[r["transformers"]],
            "held": {"lib/a.py old": 290 + moved[r["transformers"]], "b.py f": 10},
        }
        for r in measured
    ]
    trials = len({r["trial"] for r in measured if r["transformers"] == "4.52.4"})
    others = [r for r in stored if r["kind"] != "observation"]
    [page] = reference([failures()[WHISPER]], [*others, *records]).failures
    assert page.memory is not None
    assert [(each.where, each.bytes, each.trials, each.held_by) for each in page.memory.differences] == [
        ("4.52.4", 5000, trials, (("a.py old", 5000),))
    ]
    assert page.memory.same == (() if small else ("4.53.3",))
    text = markdown.documents(Reference((page,), (), page.basis))[f"{WHISPER}.md"]
    assert f"| 4.52.4 | +5,000 | {trials} | `a.py old` +5,000 |" in text


def test_peaks_stand_side_by_side_only_of_advice_that_was_followed_to_an_end(stored: tuple[Any, ...]) -> None:
    [page] = reference([failures()[WHISPER]], with_peaks(stored)).failures
    assert page.memory is not None
    assert (page.memory.where, page.memory.how, page.memory.capacity) == ("4.53.3", "emulated, allocator", 200)
    told = {peak.run: (peak.bytes, peak.says) for peak in page.memory.peaks}
    assert told["the plain run"] == (100, "trains")
    assert told["the reported run"] == (300, "double backward")
    assert told["with use-reentrant-false"] == (100, "resolves")
    assert told["with W1"] == (300, "no effect")
    assert not {"with W4", "with fp16-off"} & set(told)
    assert [peak.bytes for peak in page.memory.peaks] == sorted((p.bytes for p in page.memory.peaks), reverse=True)
    text = markdown.documents(Reference((page,), (), page.basis))[f"{WHISPER}.md"]
    assert "the capacity is 200 bytes" in text


def test_a_failure_without_observations_has_a_page_that_says_so() -> None:
    facts = reference(failures().values(), [])
    text = markdown.documents(facts)[f"{WHISPER}.md"]
    assert "Nothing was observed yet." in text
    assert "not judged" not in text or "resolves" not in text


@pytest.mark.parametrize("entry", failures().values(), ids=lambda entry: entry.id)
def test_every_cell_of_the_reference_holds_the_whole_set_of_trials(entry: Failure, stored: tuple[Any, ...]) -> None:
    observed = cells(entry, stored)
    assert observed, "nothing is stored about it"
    for cell in observed:
        lacking = {trial.id for trial in choose.trials(entry, "reference", cell.device)} - set(cell.observations)
        assert not lacking, f"{cell.id}: run `repro matrix --trial-set reference` and `repro docs --update-reference`"


@pytest.mark.parametrize("entry", failures().values(), ids=lambda entry: entry.id)
def test_every_setting_that_the_trigger_asks_for_has_the_pair_that_proves_it(
    entry: Failure, stored: tuple[Any, ...]
) -> None:
    settings = {factor.name for factor in entry.factors_at(entry.reported_scope)}
    for cell in cells(entry, stored):
        there = cell.outcome_of(entry, entry.reported).name
        for name, level in ((f.name, level) for f in entry.factors if f.name in settings for level in f.levels):
            changed = entry.reported.but(**{name: level})
            if cell.lacks_the_model or not entry.allows(changed) or not entry.runs_on(changed, cell.device):
                continue
            predicted = entry.trigger.predict(changed, entry.reported_scope, cell.mechanism or {})
            if predicted not in (None, there):
                assert cell.outcome_of(entry, changed).name == predicted, (cell.id, name, level)


def test_a_release_without_the_model_is_neither_affected_nor_in_need_of_a_cure(stored: tuple[Any, ...]) -> None:
    entry = failures()["omniasr-silent-gradient-loss"]
    facts = reference([entry], stored).failures[0]
    absent = [status.place for status in facts.statuses if status.status == ABSENT]
    assert {place.transformers for place in absent} >= {"4.36.2", "4.53.3"}
    assert facts.frontier.last_good_before in {place.transformers for place in absent}
    for claim in facts.claims:
        assert {j.verdict for j in claim.judged if j.place in absent} == {"not needed"}


def test_reference_files_are_small_name_no_machine_and_hold_no_damage() -> None:
    assert not read(REFERENCE).damage
    for path in REFERENCE.glob("*.jsonl"):
        text = path.read_text("utf-8")
        assert len(text.encode()) <= LARGEST
        assert not re.search(r"(?<![\w.])/(tmp|home|root|work|opt)\b", text), path


def test_updating_the_reference_twice_changes_nothing(tmp_path: Path) -> None:
    catalogue = list(failures().values())
    first = {path.name: path.read_bytes() for path in update(catalogue, REFERENCE, tmp_path / "a")}
    again = {path.name: path.read_bytes() for path in update(catalogue, tmp_path / "a", tmp_path / "a")}
    assert first == again == {path.name: path.read_bytes() for path in REFERENCE.glob("*.jsonl")}


def test_a_reference_file_may_have_its_largest_size_and_no_byte_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = list(failures().values())
    deep = tmp_path / "not" / "there"
    largest = max(path.stat().st_size for path in REFERENCE.glob("*.jsonl"))
    monkeypatch.setattr("repro.store.reference.LARGEST", largest - 1)
    with pytest.raises(CondensingError, match=rf"would have {largest} bytes; a file may have {largest - 1}\."):
        update(catalogue, REFERENCE, deep)
    assert not deep.parent.exists()
    monkeypatch.setattr("repro.store.reference.LARGEST", largest)
    assert update(catalogue, REFERENCE, deep) == sorted(deep.glob("*.jsonl"))


def test_a_reference_file_of_a_cell_that_is_gone_is_removed(tmp_path: Path) -> None:
    catalogue = list(failures().values())
    (tmp_path / "gone.jsonl").write_text("", "utf-8")
    (tmp_path / "notes.md").write_text("# Mine\n", "utf-8")
    written = update(catalogue, REFERENCE, tmp_path)
    assert set(tmp_path.iterdir()) == {*written, tmp_path / "notes.md"}


def test_a_failure_that_was_not_observed_again_keeps_its_reference(tmp_path: Path) -> None:
    entry = failures()[WHISPER]
    other = replace(entry, id="another")
    results, kept = tmp_path / "results", tmp_path / "reference"
    results.mkdir()
    mine = [r for r in read(REFERENCE).records if r["kind"] == "cell" or r.get("failure") == WHISPER]
    lines = [dump({**record, "id": f"other {record['id']}"}) + "\n" for record in mine]
    (results / "w.jsonl").write_text("".join(dump(record) + "\n" for record in mine), "utf-8")
    update([entry], results, kept)
    (results / "w.jsonl").unlink()
    (results / "r.jsonl").write_text("".join(lines).replace(WHISPER, "another"), "utf-8")
    update([entry, other], results, kept)
    records = read(kept).records
    assert {r["failure"] for r in records if r["kind"] == "observation"} == {WHISPER, "another"}


def test_condensing_that_would_change_a_verdict_is_refused(tmp_path: Path) -> None:
    entry = failures()[WHISPER]
    claim = replace(
        entry.claims[-1], kind="statement", holds=lambda facts: "twin_losses" in facts[0], about_failure=False
    )
    results = tmp_path / "results"
    results.mkdir()
    records = [{**r, "twin_losses": [1.0]} if r["kind"] == "observation" else r for r in read(REFERENCE).records]
    (results / "r.jsonl").write_text("".join(dump(record) + "\n" for record in records), "utf-8")
    with pytest.raises(CondensingError, match=claim.id):
        update([replace(entry, claims=(claim,))], results, tmp_path / "reference")
    assert not (tmp_path / "reference").exists()


def test_condensing_that_would_change_an_outcome_is_refused(tmp_path: Path) -> None:
    entry = failures()[WHISPER]
    shows = replace(entry.symptoms[0], exception="", shows=lambda facts: len(facts.get("log", ())) > 50)
    results = tmp_path / "results"
    results.mkdir()
    records = [{**r, "log": [0] * 99} if r["kind"] == "observation" else r for r in read(REFERENCE).records]
    (results / "r.jsonl").write_text("".join(dump(record) + "\n" for record in records), "utf-8")
    with pytest.raises(CondensingError, match="other outcomes"):
        update([replace(entry, symptoms=(shows,), claims=())], results, tmp_path / "reference")


def test_a_meters_source_stays_and_its_report_goes(stored: tuple[Any, ...]) -> None:
    one = next(r for r in stored if r["kind"] == "observation")
    memory = {"device": "emulated", "peak_bytes": 5, "timeline": [[0, 1]] * 500, "holders": [{"bytes": 1}]}
    [kept] = condense([{**one, "memory": memory, "peak_bytes": 5}], [failures()[WHISPER]])
    assert kept["memory"] == {"device": "emulated"}
    assert kept["peak_bytes"] == 5


def test_a_stored_configuration_leaves_out_defaults_and_reads_as_the_whole(stored: tuple[Any, ...]) -> None:
    entry = failures()[WHISPER]
    one = next(r for r in stored if r["kind"] == "observation")
    whole = entry.stored(one["configuration"])
    [kept] = condense([{**one, "configuration": dict(whole)}], [entry])
    assert kept["configuration"] == entry.deviations(whole)
    assert entry.trial(entry.stored(kept["configuration"]), kept["scope"]).id == kept["trial"]
    [foreign] = condense([{**one, "configuration": {**whole, "gone": "yes"}}], [entry])
    assert foreign["configuration"] == {**whole, "gone": "yes"}


def test_contradictory_observations_both_stay_and_repeated_ones_do_not(stored: tuple[Any, ...]) -> None:
    entry = failures()[WHISPER]
    one = next(r for r in stored if r["kind"] == "observation" and entry.outcome(r) == "trains")
    later = {**one, "id": "later", "time": "2999-01-01"}
    differs = {**one, "id": "differs", "end": "raised", "exception": {"type": "OSError", "message": "no"}}
    unfinished = {**one, "id": "unfinished", "end": "timed out"}
    kept = condense([one, later, differs, unfinished], [entry])
    assert {record["id"] for record in kept} == {"later", "differs"}


def test_wrong_usage_of_docs_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, "docs", "--update-reference", "--out", str(tmp_path)) == 2
    assert run(monkeypatch, "docs", "--results", str(tmp_path / "none"), "--out", str(tmp_path)) == 3
    (tmp_path / "file").write_text("", "utf-8")
    assert run(monkeypatch, "docs", "--out", str(tmp_path / "file")) == 3
    with pytest.raises(ResultsError, match="no observation"):
        update(failures().values(), tmp_path)


def test_pages_are_not_overwritten_where_no_known_failure_was_observed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").write_bytes(b"\x00\xff\n[]\n")
    (tmp_path / "unknown.jsonl").write_text(dump({**record("observation", "c"), "failure": "none-of-ours"}) + "\n")
    for command in ("docs", "report"):
        out = tmp_path / command
        assert run(monkeypatch, command, "--results", str(REFERENCE), "--out", str(out)) == 0
        before = {path: path.read_bytes() for path in out.iterdir()}
        for results in ("empty", "damaged", "unknown.jsonl"):
            assert run(monkeypatch, command, "--results", str(tmp_path / results), "--out", str(out)) == 3
            assert "holds no observation of any known failure" in capsys.readouterr().err
            assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_results_of_a_newer_schema_are_refused_with_a_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"schema": 99, "kind": "cell", "id": "x", "time": "2026-01-01", "cell": "c"}
    (tmp_path / "r.jsonl").write_text(json.dumps(record) + "\n", "utf-8")
    for command in ("docs", "report"):
        assert run(monkeypatch, command, "--results", str(tmp_path), "--out", str(tmp_path / "out")) == 3
        assert "newer version" in capsys.readouterr().err


@given(st.lists(st.tuples(st.text(max_size=3), st.sampled_from("ab"))))
def test_stretches_cover_every_part_once_and_neighbours_differ(parts: list[tuple[str, str]]) -> None:
    found = stretches(parts)
    assert sum(stretch.cells for stretch in found) == len(parts)
    assert "".join(stretch.value * stretch.cells for stretch in found) == "".join(value for _, value in parts)
    assert all(one.value != other.value for one, other in itertools.pairwise(found))


@given(st.text(alphabet="ab|<>`*_[]\n "))
def test_text_in_a_table_stays_in_its_field(text: str) -> None:
    assert "\n" not in markdown.plain(text)
    assert "|" not in markdown.plain(text).replace(r"\|", "")
    assert "|" not in markdown.code(text).replace(r"\|", "")
