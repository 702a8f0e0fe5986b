"""GitHub, through its own command line `gh`, which has to be logged in: the one place where anything is asked of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

Gh = Callable[[Sequence[str]], str]


class GitHubError(Exception):
    """GitHub could not be asked, or its answer is none; the message says what was tried."""


def gh(words: Sequence[str]) -> str:
    """Run GitHub's command line, and return what it printed. Raises GitHubError when it fails."""
    try:
        done = subprocess.run(["gh", *words], capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitHubError(f"gh {' '.join(words[:2])}: {error}") from error
    if done.returncode:
        raise GitHubError(f"gh {' '.join(words[:2])}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def fetch_last_green(repository: str, branch: str, title: str, into: Path, run: Gh = gh) -> str:
    """Fetch the results of the last night of this title that ended green, and return the number of its run.

    Where no night ever did, `into` is an empty directory then, and the number is empty. Raises GitHubError when GitHub
    cannot be asked, or no longer has the results; `into` does not exist then.
    """
    there = ["--repo", repository]
    wanted = ["--workflow", "nightly", "--branch", branch, "--status", "success", "--limit", "100"]
    listed = run(["run", "list", *there, *wanted, "--json", "databaseId,displayTitle,event"])
    try:
        # A pull request's branch may have any name, this one's too.
        known = [row for row in json.loads(listed) if row["displayTitle"] == title and row["event"] != "pull_request"]
        number = str(int(known[0]["databaseId"])) if known else ""
    except (ValueError, KeyError, TypeError) as error:
        raise GitHubError(f"gh run list answered {listed[:200]!r}") from error
    if not number:
        into.mkdir(parents=True, exist_ok=True)
        return ""
    try:
        run(["run", "download", number, *there, "--name", "results", "--dir", str(into)])
    except GitHubError:
        shutil.rmtree(into, ignore_errors=True)  # half of a night would read as one that lost the other half
        raise
    return number
