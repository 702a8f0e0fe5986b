"""Counting mutants: nothing that survived is lost, and only what is explained is not held against the tests."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from . import count_mutants
from .count_mutants import EXPLAINED, Count, count, explanations

ROOT = Path(__file__).parents[2]

MUTATED = '''
class Box:
    def xǁBoxǁput__mutmut_orig(self, what: str) -> None:
        self.what = what

    def xǁBoxǁput__mutmut_1(self, what: str) -> None:
        self.what = None


def x_read__mutmut_orig(path: Path) -> str:
    """Read it."""
    text = path.read_text(encoding="utf-8")
    return text or "a|b"


def x_read__mutmut_1(path: Path) -> str:
    """Read it."""
    text = path.read_text(encoding="UTF-8")
    return text or "a|b"


def x_read__mutmut_2(path: Path) -> str:
    """Read it."""
    text = path.read_text(encoding="utf-8")
    return text or "A|B"
'''
TABLE = '| function | texts | why |\n|---|---|---|\n| `repro.room.read` | `"UTF-8"`, `"A\\|B"` | the same |\n'


def ran(path: Path, **codes: int | None) -> Path:
    (path / "repro").mkdir(parents=True)
    (path / "repro" / "room.py").write_text(MUTATED, "utf-8")
    named = {f"repro.room.{name}": code for name, code in codes.items()}
    (path / "repro" / "room.py.meta").write_text(json.dumps({"exit_code_by_key": named}))
    return path


def test_a_mutant_is_killed_by_a_red_test_or_by_its_time_and_by_nothing_else(tmp_path: Path) -> None:
    mutants = ran(tmp_path, x_read__mutmut_1=1, x_read__mutmut_2=36, xǁBoxǁput__mutmut_1=None)
    assert count(mutants, ()) == Count(2, (), ())
    for code in (0, 33, 5, -11):
        assert len(count(ran(tmp_path / str(code), x_read__mutmut_1=code), ()).survived) == 1


def test_a_survivor_is_shown_by_its_name_and_the_lines_that_differ(tmp_path: Path) -> None:
    [put, read] = count(ran(tmp_path, xǁBoxǁput__mutmut_1=33, x_read__mutmut_1=0), ()).survived
    assert str(put).splitlines() == [
        "repro.room.xǁBoxǁput__mutmut_1: reached by no test",
        "    - self.what = what",
        "    + self.what = None",
    ]
    assert (put.function, read.function) == ("repro.room.Box.put", "repro.room.read")
    assert read.added == ('text = path.read_text(encoding="UTF-8")',)


def test_what_is_explained_is_left_out_of_the_score_and_counted(tmp_path: Path) -> None:
    mutants = ran(tmp_path, x_read__mutmut_1=0, x_read__mutmut_2=0, xǁBoxǁput__mutmut_1=1)
    found = count(mutants, explanations(TABLE))
    assert (found.killed, len(found.explained), found.survived, found.score) == (1, 2, (), 100.0)
    assert str(found).endswith("2 explained. Score: 100.0 %; 33.3 % with the explained ones.")
    other = count(mutants, explanations(TABLE.replace("room.read", "room.write")))
    assert (len(other.explained), len(other.survived)) == (0, 2)


@pytest.mark.parametrize(("least", "code"), [("50", 0), ("50.1", 1)])
def test_the_command_ends_red_below_the_score_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], least: str, code: int
) -> None:
    mutants = ran(tmp_path, x_read__mutmut_1=0, x_read__mutmut_2=1)
    assert count_mutants.main(["--mutants", str(mutants), "--least", least]) == code
    assert "x_read__mutmut_1\n" in capsys.readouterr().out


def test_a_run_of_no_mutants_is_no_success(tmp_path: Path) -> None:
    assert count_mutants.main(["--mutants", str(ran(tmp_path, x_read__mutmut_1=None))]) == 3


def functions(path: Path) -> dict[str, str]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    source = path.read_text("utf-8")
    found = {}
    for node in ast.walk(ast.parse(source)):
        body = node.body if isinstance(node, (ast.Module, ast.ClassDef)) else []
        place = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
        for each in body:
            if isinstance(each, ast.FunctionDef):
                found[f"{place}.{each.name}"] = ast.get_source_segment(source, each) or ""
    return found


def test_what_is_explained_is_of_functions_that_exist_and_has_a_reason() -> None:
    rows = explanations(EXPLAINED.read_text("utf-8"))
    known = {name: text for path in ROOT.glob("repro/*/*.py") for name, text in functions(path).items()}
    assert rows
    for row in rows:
        assert row.function in known
        assert row.texts
        for text in row.texts:
            assert text not in known[row.function], f"{row.function}: {text} is what the function says"
    assert all(line.split("|")[-2].strip() for line in EXPLAINED.read_text("utf-8").splitlines() if line[:3] == "| `")
