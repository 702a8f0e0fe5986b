"""CONTRIBUTING.md is a recipe that works: its failure is added, run and judged as it says, and its commands exist."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import repro.catalog
from repro.catalog import failures
from repro.commands import build_app

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
NAME = "everything_frozen"
FAILURE = "everything-frozen"


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", GUIDE)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A second directory of the catalogue, for as long as the test takes."""
    directory = tmp_path / "catalog"
    directory.mkdir()
    monkeypatch.setattr(repro.catalog, "__path__", [*repro.catalog.__path__, str(directory)])
    failures.cache_clear()
    yield directory
    sys.modules.pop(f"repro.catalog.{NAME}", None)
    vars(repro.catalog).pop(NAME, None)
    monkeypatch.undo()
    failures.cache_clear()


def with_claim(source: str, claim: str) -> str:
    """Add a claim to the file's CLAIMS, as the guide says."""
    whole, before = re.subn(r"(?ms)^(CLAIMS = \(.*?)^\)$", lambda match: f"{match[1]}{claim},)", source)
    assert before == 1
    return whole


def run_trials(results: Path) -> int:
    words = ["-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "failures" / "test_outcomes.py")]
    return int(pytest.main([*words, "--failures", FAILURE, "--results", str(results), f"--rootdir={ROOT}"]))


def command(*words: str) -> Any:
    result = CliRunner().invoke(build_app(), [*words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_failure_added_as_the_guide_says_is_listed_run_and_judged_as_it_says(catalog: Path, tmp_path: Path) -> None:
    source, claim = blocks("python")
    path = catalog / f"{NAME}.py"
    assert f"repro/catalog/{path.name}" in GUIDE
    path.write_text(with_claim(source, claim))
    assert FAILURE in {row["failure"] for row in command("list")}
    assert run_trials(tmp_path / "results") == 0
    judged = {
        row["claim"]: row["verdict"] for row in command("verdicts", FAILURE, "--results", str(tmp_path / "results"))
    }
    shown = dict(re.split(r"\s{2,}", line) for block in blocks("text") for line in block.splitlines())
    assert judged == shown


def test_a_trigger_that_is_wrong_turns_the_trials_red(catalog: Path, tmp_path: Path) -> None:
    source = blocks("python")[0]
    wrong = source.replace('== "everything" else TRAINS', '== "nothing" else TRAINS')
    assert wrong != source
    (catalog / f"{NAME}.py").write_text(wrong)
    assert run_trials(tmp_path / "results") == 1


def test_every_command_of_the_guide_exists_with_its_options() -> None:
    root = typer.main.get_command(build_app())
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("repro ")]
    assert len(lines) > 8
    for line in lines:
        words = shlex.split(line)[1:]
        found: Any = root
        while hasattr(found, "commands"):
            found = found.commands[words.pop(0)]
        known = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
