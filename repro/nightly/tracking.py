"""The one tracking issue: opened with the first news, kept up to date while there is any, closed by itself.

What it says is decided where the results are; posting it is a job of its own, with the right to write issues and
nothing else, that only reads what was decided.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from repro.nightly.changes import Change
from repro.nightly.github import Gh, GitHubError, gh
from repro.nightly.ledger import Ledger
from repro.nightly.wording import BODY_LIMIT, code, fit, ledger_lines, markdown

LABEL = "nightly"
ACCEPT = (
    "What changed and is right as it is: run the workflow `nightly` by hand with *accept* ticked, and later nights are "
    "compared with that one. What is not as declared stays red until the declaration or the budget says so."
)
COMPARED_AGAIN = (
    "The results of the last night without news could not be fetched; they are kept for 90 days. If they are gone, run "
    "`nightly` by hand with accept ticked, to be compared with from then on."
)

Action = Literal["open", "update", "close", "nothing"]


class IssueError(Exception):
    """The issue could not be read; the message says why."""


@dataclass(frozen=True)
class Issue:
    """What the tracking issue should say; without `news` it should be closed."""

    news: bool
    title: str
    body: str


def issue(
    ledger: Ledger,
    changes: Sequence[Change],
    run: str = "",
    *,
    trouble: Sequence[str] = (),
    standing: Sequence[Change] = (),
) -> Issue:
    """Return what the issue should say: everything that makes the night red, and what to do about it.

    `trouble` is what went wrong with the night itself, `standing` what was wrong before already and still is. The
    ledger comes before the changes: a change means little where half of it did not run.
    """
    parts = {
        "part of it did not run": bool(trouble) or not ledger.green,
        "something changed": any(change.news for change in changes),
        "something is still not as declared": bool(standing),
    }
    said = [part for part, holds in parts.items() if holds]
    lines = [f"Seen in {run if run.startswith('https://') and run.isascii() else code(run)}.", ""] if run else []
    if trouble:
        lines += ["### What is wrong with the night itself", "", *(f"* {code(text)}" for text in trouble), ""]
    lines += [*ledger_lines(ledger), "## Since the last night without news", ""]
    lines += [*markdown(changes, limit=BODY_LIMIT).splitlines(), ""]
    if standing:
        lines += ["## Wrong before already, and still", ""]
        lines += [*markdown(standing, limit=BODY_LIMIT).splitlines(), ""]
    lines += [*([ACCEPT, ""] if said else []), "Closes itself when a night passes without news."]
    return Issue(bool(said), f"Nightly: {' and '.join(said) or 'nothing new'}", fit(lines, BODY_LIMIT))


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


def post(found: Issue, repository: str, body_file: Path, run: Gh = gh) -> Action:
    """Bring the repository's tracking issue in line, and return what was done. Raises GitHubError."""
    there = ["--repo", repository]
    listed = run(["issue", "list", *there, "--label", LABEL, "--state", "open", "--limit", "1", "--json", "number"])
    try:
        numbers = [str(int(row["number"])) for row in json.loads(listed)]
    except (ValueError, KeyError, TypeError) as error:
        raise GitHubError(f"gh issue list answered {listed[:200]!r}") from error
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
