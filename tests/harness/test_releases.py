"""Which releases a user means."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from repro.cells import refresh, releases
from repro.cells.releases import FIRST_SUPPORTED, Release, SelectionError, Table, select, table

KNOWN = [release for release in table().of("transformers") if release.parsed >= FIRST_SUPPORTED]
FINAL = [release for release in KNOWN if not release.yanked and not release.prerelease]


def chosen(*texts: str, prereleases: bool = False) -> list[str]:
    return [release.version for release in select(texts, table(), prereleases=prereleases)]


def test_a_version_with_three_parts_is_that_release() -> None:
    assert chosen("4.52.4") == ["4.52.4"]


def test_a_version_with_fewer_parts_is_the_last_release_that_starts_with_it() -> None:
    assert chosen("4.52") == ["4.52.4"]
    assert chosen("4") == [max((r for r in FINAL if r.parsed.major == 4), key=lambda r: r.parsed).version]


def test_a_list_mixes_versions_ranges_and_words() -> None:
    assert chosen("4.36.2,>=4.52.3,<4.53,latest") == ["4.36.2", "4.52.3", "4.52.4", FINAL[-1].version]


def test_repeated_lists_may_each_hold_a_range() -> None:
    assert chosen(">=4.51.2,<4.52", "4.36.2,4.36.2") == ["4.36.2", "4.51.2", "4.51.3"]


def test_all_is_the_last_unyanked_patch_of_every_minor_since_the_first() -> None:
    got = [Version(version) for version in chosen("all")]
    minors = {(r.parsed.major, r.parsed.minor) for r in FINAL}
    assert [(v.major, v.minor) for v in got] == sorted(minors)
    assert all(not any(r.parsed > v and r.parsed.release[:2] == v.release[:2] for r in FINAL) for v in got)


def test_yanked_releases_are_known_and_taken_only_by_their_whole_name() -> None:
    assert table().get("transformers", "4.52.0") is not None
    assert "4.52.0" not in chosen(">=4.52,<4.53")
    assert chosen("4.52.0") == ["4.52.0"]
    assert chosen("==4.52.0") == ["4.52.0"]


def test_a_range_of_yanked_releases_only_says_so() -> None:
    with pytest.raises(SelectionError, match=r"yanked releases only \(4\.52\.0\)"):
        chosen(">=4.52,<4.52.1")


def test_prereleases_come_only_by_request() -> None:
    assert not any(Version(version).is_prerelease for version in chosen(">=4.57,<5.1"))
    assert "5.0.0rc1" in chosen(">=4.57,<5.1", prereleases=True)
    assert chosen("5.0.0rc1") == ["5.0.0rc1"]
    assert "5.0.0rc1" in chosen(">=5.0.0rc0,<5.1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4.52.9", r"no transformers 4\.52\.9.*Nearest: 4\.52\.4 and 4\.53\.0"),
        ("4.30.1", r"written for 4\.36 and newer.*Nearest: 4\.36\.0"),
        ("99.1.0", r"no transformers 99\.1\.0\. Nearest: [\d.]+\."),
        (">=90", r"no transformers release is within >=90"),
        (">=4.50,<4.49", r"no transformers release is within"),
        ("newest", r"neither `latest` nor `all`"),
        (">=x", r"no range"),
        (" , ", r"no release was named"),
    ],
)
def test_what_selects_nothing_is_an_error_that_offers_what_does(text: str, says: str) -> None:
    with pytest.raises(SelectionError, match=says):
        chosen(text)


VERSIONS = st.sampled_from([release.version for release in KNOWN])


@given(low=VERSIONS, high=VERSIONS)
def test_a_range_holds_every_final_release_in_it_and_nothing_else(low: str, high: str) -> None:
    wanted = SpecifierSet(f">={low},<={high}")
    takes_pre = Version(low).is_prerelease or Version(high).is_prerelease
    expected = [r.version for r in KNOWN if not r.yanked and wanted.contains(r.parsed, prereleases=takes_pre)]
    if expected:
        assert chosen(str(wanted)) == expected
    else:
        with pytest.raises(SelectionError):
            chosen(str(wanted))


@given(st.lists(VERSIONS, min_size=1, max_size=6))
def test_named_releases_come_sorted_and_once(versions: list[str]) -> None:
    assert chosen(",".join(versions)) == [str(v) for v in sorted({Version(version) for version in versions})]


@given(st.text(max_size=20))
def test_no_text_breaks_the_selection(text: str) -> None:
    try:
        assert chosen(text)
    except SelectionError as error:
        assert str(error)  # noqa: PT017 - either is right, and a message must be there


def test_a_written_table_reads_back_the_same(tmp_path: Path) -> None:
    refresh.write(table(), tmp_path / "releases.json")
    assert releases.parse(json.loads((tmp_path / "releases.json").read_text())) == table()
    assert releases.dump(table()) == releases.PACKAGED.read_text()


def test_the_newest_torch_before_a_date_is_final_and_not_yanked() -> None:
    day = datetime.date(2025, 1, 1)
    rows = (
        Release("2.5.0", day),
        Release("2.5.1", day, yanked=True),
        Release("2.6.0rc1", day),
        Release("2.6.0", day + datetime.timedelta(days=1)),
    )
    assert Table(day, {"torch": rows}).newest_before("torch", day) == rows[0]
    assert Table(day, {"torch": rows}).newest_before("torch", datetime.date(2024, 1, 1)) is None


def test_without_an_index_the_refresh_says_so_and_keeps_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/nowhere")
    before = releases.PACKAGED.read_bytes()
    with pytest.raises(refresh.IndexTroubleError, match=r"cannot be asked: .*[Rr]efused.*stays as it was"):
        refresh.fetch(datetime.date(2026, 1, 1))
    assert releases.PACKAGED.read_bytes() == before
