"""The one tracking issue: opened with the first news, kept up to date while there is any, closed by itself.

What it says is decided where the results are; posting it is a job of its own, with the right to write issues and
nothing else, that only reads what was decided.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from repro.nightly.changes import Change
from repro.nightly.ledger import Ledger
from repro.nightly.wording import BODY_LIMIT, code, fit, ledger_lines, markdown

LABEL = "nightly"
TITLE = "Nightly: something changed"

Action = Literal["open", "update", "close", "nothing"]
Gh = Callable[[Sequence[str]], str]


class IssueError(Exception):
    """The issue could not be read or written; the message says what was tried."""


@dataclass(frozen=True)
class Issue:
    """What the tracking issue should say; without `news` it should be closed."""

    news: bool
    title: str
    body: str


def issue(ledger: Ledger, changes: Sequence[Change], run: str = "") -> Issue:
    """Return what the issue should say. The ledger comes first: a change means little where half of it did not run."""
    news = not ledger.green or any(change.news for change in changes)
    head = [f"Seen in {code(run)}.", ""] if run else []
    told = markdown(changes, limit=BODY_LIMIT).splitlines()
    lines = [*head, *ledger_lines(ledger), *told, "", "Closes itself when a night passes without news."]
    return Issue(news, TITLE, fit(lines, BODY_LIMIT))


def action(known: bool, news: bool) -> Action:
    """Return what to do, given whether the issue is open and whether there is news."""
    if news:
        return "update" if known else "open"
    return "close" if known else "nothing"


def write(found: Issue, path: Path) -> None:
    """Keep an issue for the job that posts it."""
    path.write_text(json.dumps(asdict(found)), encoding="utf-8")


def read(path: Path) -> Issue:
    """Read an issue back. Raises IssueError when there is none."""
    try:
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Issue(bool(document["news"]), str(document["title"]), str(document["body"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IssueError(f"{path} holds no issue: {error}") from error


def gh(words: Sequence[str]) -> str:
    """Run GitHub's command line, and return what it printed. Raises IssueError when it fails."""
    try:
        done = subprocess.run(["gh", *words], capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise IssueError(f"gh {' '.join(words[:2])}: {error}") from error
    if done.returncode:
        raise IssueError(f"gh {' '.join(words[:2])}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def post(found: Issue, repository: str, body_file: Path, run: Gh = gh) -> Action:
    """Bring the repository's tracking issue in line, and return what was done. Raises IssueError."""
    there = ["--repo", repository]
    listed = run(["issue", "list", *there, "--label", LABEL, "--state", "open", "--limit", "1", "--json", "number"])
    try:
        numbers = [str(int(row["number"])) for row in json.loads(listed)]
    except (ValueError, KeyError, TypeError) as error:
        raise IssueError(f"gh issue list answered {listed[:200]!r}") from error
    todo = action(bool(numbers), found.news)
    body_file.write_text(found.body, encoding="utf-8")
    if todo == "open":
        run(["label", "create", LABEL, *there, "--force", "--description", "kept by the nightly"])
        run(["issue", "create", *there, "--label", LABEL, "--title", found.title, "--body-file", str(body_file)])
    elif todo == "update":
        run(["issue", "edit", numbers[0], *there, "--title", found.title, "--body-file", str(body_file)])
    elif todo == "close":
        run(["issue", "close", numbers[0], *there, "--comment", "A night without news: all as declared."])
    return todo
