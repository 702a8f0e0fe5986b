"""Results survive: merging, damage, foreign files, newer schemas, and places that cannot be written."""

from __future__ import annotations

import datetime
import errno
import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from repro.store.reader import collector_paused, merge, read
from repro.store.records import JUDGED, KINDS, SCHEMA, dump, record
from repro.store.writer import ResultsError, Writer

values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
records = st.builds(
    lambda ident, time, more: {
        "schema": SCHEMA,
        "kind": "observation",
        "id": ident,
        "time": f"2026-01-01T00:00:{time:02d}",
        "cell": "c",
        **more,
    },
    st.sampled_from("abcdef"),
    st.integers(0, 59),
    st.dictionaries(st.sampled_from(["end", "seconds", "detail"]), values, max_size=2),
).map(lambda r: json.loads(dump(r)))
files = st.lists(records, max_size=6)


@given(files, files)
def test_merging_is_commutative(one: list[Any], other: list[Any]) -> None:
    assert merge(one, other) == merge(other, one)


@given(files, files, files)
def test_merging_is_associative(one: list[Any], two: list[Any], three: list[Any]) -> None:
    assert merge(merge(one, two), three) == merge(one, merge(two, three))


@given(files)
def test_merging_is_idempotent(one: list[Any]) -> None:
    assert merge(one, one) == merge(one) == merge(merge(one))


@given(st.lists(records, max_size=6, unique_by=lambda r: r["id"]), st.integers(1, 4))
def test_records_read_back_are_those_written_in_however_many_files(
    tmp_path_factory: pytest.TempPathFactory, written: list[Any], writers: int
) -> None:
    directory = tmp_path_factory.mktemp("results")
    each = [Writer(directory) for _ in range(writers)]
    for index, item in enumerate(written):
        each[index % writers].append(item)
    found = read(directory)
    assert found.damage == ()
    assert found.records == merge(written)


def test_a_torn_last_line_is_skipped_without_a_word(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.append(record("started", "c", trial="t"))
    with writer.path.open("a") as file:
        file.write('{"schema": 1, "kind": "obs')
    found = read(tmp_path)
    assert (len(found.records), found.damage) == (1, ())


def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    good = dump(record("started", "c", trial="t"))
    path = tmp_path / "x.jsonl"
    path.write_text(f"{good}\n{{broken\n{dump(record('started', 'c', trial='u'))}\n")
    found = read(tmp_path)
    assert [item["trial"] for item in found.records] == ["t", "u"]
    assert [(damage.path, damage.line) for damage in found.damage] == [(path, 2)]


@pytest.mark.parametrize("content", ['{"a": 1}\n', "[1, 2]\n", "\x00\x01\x02\n", '"text"\n'])
def test_a_foreign_file_is_named_and_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "foreign.jsonl"
    path.write_text(content)
    Writer(tmp_path).append(record("started", "c"))
    found = read(tmp_path)
    assert [damage.path.name for damage in found.damage] == ["foreign.jsonl"]
    assert path.read_text() == content


@pytest.mark.parametrize("name", ["schema", "kind", "id", "time", "cell"])
def test_what_lacks_a_field_of_every_record_or_has_it_of_another_type_is_no_record(tmp_path: Path, name: str) -> None:
    whole = record("started", "c")
    lacking = {key: value for key, value in whole.items() if key != name}
    (tmp_path / "x.jsonl").write_text("".join(dump(row) + "\n" for row in (lacking, {**whole, name: None}, whole)))
    found = read(tmp_path)
    assert [item["id"] for item in found.records] == [whole["id"]]
    assert list(map(str, found.damage)) == [
        f"{tmp_path / 'x.jsonl'}:{line}: JSON, but not a record of this project" for line in (1, 2)
    ]


def test_reading_leaves_the_search_for_garbage_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(dump({**record("started", "c"), "schema": SCHEMA + 1}) + "\n")
    with pytest.raises(ResultsError):
        read(tmp_path)
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_two_records_with_one_id_are_the_one_whose_text_sorts_first_and_time_orders_then_id() -> None:
    def row(name: str, time: str, **more: str) -> dict[str, Any]:
        return {"schema": SCHEMA, "kind": "started", "id": name, "time": time, "cell": "c", **more}

    one, other = row("a", "2", detail="x"), row("a", "2", detail="y")
    assert merge([other], [one]) == merge([one, other]) == (one,)
    rows = [row("c", "1"), row("a", "3"), row("b", "1"), row("d", "2")]
    assert [item["id"] for item in merge(rows)] == ["b", "c", "d", "a"]


def test_records_of_one_file_share_their_names_of_fields_which_is_a_third_of_the_memory(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(dump(record("started", "c", trial=n)) + "\n" for n in "ab"))
    one, other = read(tmp_path).records
    assert all(mine is its for mine, its in zip(one, other, strict=True))


def test_records_of_other_kinds_are_left_out_unread_and_the_rest_is_as_ever(tmp_path: Path) -> None:
    written = [record(kind, "c", failure="f", trial="t") for kind in KINDS]
    broken = dump(record("started", "c"))[:-1]
    (tmp_path / "x.jsonl").write_text("\n".join([broken, *map(dump, written)]) + "\n")
    found = read(tmp_path, kinds=JUDGED)
    assert {item["kind"] for item in found.records} == set(JUDGED)
    assert found.damage == ()
    assert [damage.line for damage in read(tmp_path).damage] == [1]


def test_observations_that_lack_a_text_are_left_out_and_no_other_record_is(tmp_path: Path) -> None:
    for kind in KINDS:
        for failure in ("one", "other"):
            Writer(tmp_path).append(record(kind, "c", failure=failure))
    found = read(tmp_path, containing='"one"')
    assert sorted((item["kind"], item["failure"]) for item in found.records) == sorted(
        (kind, failure) for kind in KINDS for failure in ("one", "other") if (kind, failure) != ("observation", "other")
    )


fragments = st.lists(
    st.sampled_from(["{", "}", "[", "]", ",", '"', ":", "1", "\n", " ", "{}", '{"a":1}'])
    | records.map(dump)
    | records.map(lambda r: dump(r)[:-3])
)


@given(fragments, st.booleans())
@example(['{"a":[1', "2]}"], True)
@example(["{},{}"], True)
def test_a_file_is_read_as_its_lines_are_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], ended: bool
) -> None:
    text = "".join(part + "\n" * (len(part) > 2) for part in parts) + "\n" * ended
    path = tmp_path_factory.getbasetemp() / "whole.jsonl"
    path.write_text(text)
    whole = read(path)
    one_by_one, damaged = [], []
    *lines, torn = text.split("\n")
    for number, line in enumerate(lines, 1):
        path.write_text(line + "\n")
        found = read(path)
        one_by_one.append(found.records)
        damaged += [number for _ in found.damage]
    path.write_text(torn)
    assert whole.records == merge(*one_by_one, read(path).records)
    assert [damage.line for damage in whole.damage] == damaged


def test_one_file_is_read_like_a_directory_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "one")
    writer.append(record("started", "c", failure="f"))
    writer.append(record("observation", "c", failure="f"))
    writer.close()
    assert "-one-" in writer.path.name
    (tmp_path / "x.jsonl").mkdir()
    whole = read(tmp_path)
    assert read(writer.path).records == whole.records
    assert list(map(str, whole.damage)) == [f"{tmp_path / 'x.jsonl'}:0: cannot be read: Is a directory"]
    assert [item["kind"] for item in whole.of_kind("observation", "f")] == ["observation"]
    assert list(whole.of_kind("observation", "other")) == []
    assert all(item["time"].endswith("+00:00") for item in whole.records)


def test_a_whole_last_line_of_a_newer_schema_is_refused_by_its_number(tmp_path: Path) -> None:
    newer = dump({**record("started", "c"), "schema": SCHEMA + 1})
    (tmp_path / "x.jsonl").write_text(f"{dump(record('started', 'c'))}\n{newer}")
    with pytest.raises(ResultsError, match=r"x\.jsonl:2: written by a newer version"):
        read(tmp_path)


def test_a_newer_schema_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(dump({**record("started", "c"), "schema": SCHEMA + 1}) + "\n")
    with pytest.raises(ResultsError, match=r"x\.jsonl:1: written by a newer version"):
        read(tmp_path)


def test_no_directory_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="run `repro run`"):
        read(tmp_path / "none")


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=r"cannot write results to .*file"):
        Writer(tmp_path / "file" / "results").append(record("started", "c"))


@pytest.mark.parametrize(("given", "shown"), [((), ""), (("one",), "one-")])
def test_a_results_file_is_named_by_the_time_in_utc_its_name_and_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], shown: str
) -> None:
    try:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TZ", "XST-9")
            time.tzset()
            name = Writer(tmp_path, *given).path.name
    finally:
        time.tzset()
    found = re.fullmatch(rf"(\d{{8}}T\d{{6}})-{shown}{os.getpid()}-[0-9a-f]{{6}}\.jsonl", name)
    assert found, name
    stamp = datetime.datetime.strptime(found[1] + "+0000", "%Y%m%dT%H%M%S%z")
    assert abs(datetime.datetime.now(datetime.timezone.utc) - stamp) < datetime.timedelta(minutes=5)


def test_the_first_record_makes_the_directories_and_a_file_that_others_can_read(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a" / "b")
    mask = os.umask(0)
    try:
        writer.append(record("started", "c"))
    finally:
        os.umask(mask)
    assert writer.path.stat().st_mode & 0o777 == 0o644


def test_a_file_that_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.path.write_text("mine")
    with pytest.raises(ResultsError, match="File exists"):
        writer.append(record("started", "c"))
    assert writer.path.read_text() == "mine"


def test_what_is_written_after_a_record_that_found_half_its_space_can_be_read(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.append(record("started", "c", trial="s"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(ResultsError) as told:
            writer.append(record("started", "c", trial="t"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(told.value) == (
        f"cannot write results to {tmp_path}: No space left on device. What was stored before is safe; "
        "choose another directory with --results, or make room there."
    )
    assert isinstance(told.value.__cause__, OSError)
    assert told.value.__cause__.errno == errno.ENOSPC
    writer.append(record("started", "c", trial="u"))
    writer.append(record("started", "c", trial="v"))
    found = read(tmp_path)
    assert [item["trial"] for item in found.records] == ["s", "u", "v"]
    assert [damage.line for damage in found.damage] == [2]
    assert len(writer.path.read_text().splitlines()) == 4


def test_closing_a_writer_twice_or_before_its_first_record_does_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.close()
    assert not list(tmp_path.iterdir())
    writer.append(record("started", "c"))
    writer.close()
    writer.close()
    assert len(read(tmp_path).records) == 1


def test_a_full_place_loses_nothing_that_was_written(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from repro.store.records import record
        from repro.store.writer import ResultsError, Writer
        writer = Writer(Path(sys.argv[1]))
        try:
            for number in range(1000):
                writer.append(record("started", "c", trial=str(number)))
        except ResultsError as error:
            print(number, error)
    """)

    def little_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=little_space,
        check=True,
    )
    written = int(run.stdout.split()[0])
    assert "cannot write results" in run.stdout
    assert [item["trial"] for item in read(tmp_path).records] == [str(number) for number in range(written)]


def test_numbers_that_json_lacks_do_not_break_a_line(tmp_path: Path) -> None:
    Writer(tmp_path).append(record("observation", "c", losses=[float("nan"), float("inf"), 1.0]))
    assert read(tmp_path).records[0]["losses"] == ["nan", "inf", 1.0]
    assert len(read(tmp_path, containing="other").records) == 0, "written like any other"


def test_a_kind_that_the_schema_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no record kind"):
        record("guess", "c")
