"""The tracking issue: what it says, how it is kept until it is posted, and what is asked of GitHub's program."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from repro.nightly import changes as kinds
from repro.nightly import tracking
from repro.nightly.changes import Change
from repro.nightly.github import GitHubError, gh
from repro.nightly.ledger import Ledger, Line
from repro.nightly.tracking import Issue, IssueError, issue
from repro.nightly.wording import sentence

ALL_RAN = Ledger((Line("c", ("c",), {"observed": 1}, ()),))
SINCE = ["## Since the last night without news", ""]
RAN = ["### What ran: all that was planned", "", "1 cell: 1 observed", "", "", *SINCE]
ENDS = ["", "Closes itself when a night passes without news."]


def test_the_issue_says_what_ran_then_what_changed_and_where_it_was_seen() -> None:
    quiet = issue(ALL_RAN, [])
    assert (quiet.news, quiet.title) == (False, "Nightly: nothing new")
    assert quiet.body.splitlines() == [*RAN, "Nothing changed.", *ENDS]
    change = Change(kinds.GONE, "f", "5.0.0", before="trains")
    told = issue(ALL_RAN, [change, Change(kinds.COVERED, "f", "5.1.0")], "https://ci/1")
    assert told.news
    assert told.body.splitlines()[:11] == ["Seen in https://ci/1.", "", *RAN, "### Cells that are gone (1)", ""]
    assert told.title == "Nightly: something changed"
    assert f"* `{sentence(change)}`" in told.body.splitlines()
    assert told.body.splitlines()[-2:] == ENDS


def test_what_is_wrong_with_the_night_and_what_was_wrong_before_are_told_apart_from_what_changed() -> None:
    still = Change(kinds.UNDECLARED, "f", "5.0.0", declared="trains", after="x", trials=("t",))
    told = issue(ALL_RAN, [], trouble=["the job `gpu` ended with: failure"], standing=[still])
    assert told.title == "Nightly: part of it did not run and something is still not as declared"
    lines = told.body.splitlines()
    assert lines[:3] == ["### What is wrong with the night itself", "", "* `the job 'gpu' ended with: failure`"]
    since, wrong = lines.index(SINCE[0]), lines.index("## Wrong before already, and still")
    assert since < wrong < lines.index(f"* `{sentence(still)}`")
    assert tracking.ACCEPT in lines
    assert issue(ALL_RAN, [], run="a`b").body.startswith("Seen in `a'b`.")


def test_an_issue_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for news in (True, False):
        written = Issue(news, "tïtle", "bödy\n\udc80")
        tracking.write(written, tmp_path / "issue.json")
        assert tracking.read(tmp_path / "issue.json") == written


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"news": true, "title": "t"}', '{"news": true, "body": "b"}'])
def test_a_file_that_holds_no_issue_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "issue.json").write_text(content)
    with pytest.raises(IssueError, match=r"issue\.json holds no issue: "):
        tracking.read(tmp_path / "issue.json")
    with pytest.raises(IssueError, match=r"nowhere\.json holds no issue: .*No such file"):
        tracking.read(tmp_path / "nowhere.json")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a place where a program named `gh` can be put, for `gh` to find it first, and alone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "gh"


def put(program: Path, source: str) -> None:
    program.write_text(f"#!{sys.executable}\nimport sys\n{textwrap.dedent(source)}")
    program.chmod(0o755)


def test_githubs_program_is_given_the_words_and_its_answer_is_returned(program: Path) -> None:
    put(program, 'print(sys.argv[1:])\nprint("noise", file=sys.stderr)\n')
    assert gh(["issue", "list", "--json", "a b"]) == "['issue', 'list', '--json', 'a b']\n"


def test_what_githubs_program_says_when_it_fails_is_told_with_what_was_tried_and_without_the_rest(
    program: Path,
) -> None:
    put(program, 'print("  HTTP 403\\n", file=sys.stderr)\nsys.exit(4)\n')
    with pytest.raises(GitHubError) as told:
        gh(["issue", "list", "--repo", "o/n"])
    assert str(told.value) == "gh issue list: HTTP 403"
    put(program, "sys.exit(4)\n")
    with pytest.raises(GitHubError, match=r"^gh issue list: exit code 4$"):
        gh(["issue", "list", "--repo", "o/n"])


def test_a_machine_without_githubs_program_is_told_so(program: Path) -> None:
    assert not program.exists()
    with pytest.raises(GitHubError, match=r"^gh issue list: .*No such file or directory: 'gh'"):
        gh(["issue", "list", "--repo", "o/n"])


def test_the_issue_is_posted_with_the_program_that_is_there(program: Path, tmp_path: Path) -> None:
    put(
        program,
        f"""
        with open({str(tmp_path / "asked")!r}, "a") as file:
            file.write(" ".join(sys.argv[1:3]) + "\\n")
        if sys.argv[2] == "list":
            print('[{{"number": 7}}]')
        """,
    )
    assert tracking.post(Issue(True, "t", "bödy"), "o/n", tmp_path / "body.md") == "update"
    assert (tmp_path / "asked").read_text() == "issue list\nissue edit\n"
    assert (tmp_path / "body.md").read_text("utf-8") == "bödy"


@pytest.mark.parametrize("answer", ["what?", "{}x", "7", '[{"id": 1}]', '[{"number": "x"}]', "[7]"])
def test_an_answer_that_is_none_is_shown(tmp_path: Path, answer: str) -> None:
    with pytest.raises(GitHubError) as told:
        tracking.post(Issue(True, "t", "b"), "o/n", tmp_path / "b.md", lambda _: answer)
    assert str(told.value) == f"gh issue list answered {answer!r}"
    with pytest.raises(GitHubError, match=rf"answered '{'x' * 200}'$"):
        tracking.post(Issue(True, "t", "b"), "o/n", tmp_path / "b.md", lambda _: "x" * 300)
