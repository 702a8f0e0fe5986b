"""Counts what a mutation run left, and ends with 1 where too many mutants survived.

    python tests/harness/count_mutants.py [--mutants DIR] [--least PERCENT]

The score is the share killed of all that ran, but for survivors that `mutants.md` explains. A mutant that no test
reaches has survived. Ends with 3 where no mutant ran at all.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

EXPLAINED = Path(__file__).with_name("mutants.md")
LEAST = 90.0
"""Percent of the mutants that have to be killed."""

KILLED = (1, 3)
"""What pytest ends with where a test failed, or where it failed itself."""
SLOW = (-24, 24, 36, 152, 255)
"""What a mutant ends with that ran into its time limit: a loop that never ends is seen."""
UNREACHED = (5, 33)


@dataclass(frozen=True)
class Explanation:
    """Mutants of one function that no test should tell from the original: those that put one of some texts into it."""

    function: str
    texts: tuple[str, ...]

    def covers(self, survivor: Survivor) -> bool:
        """Tell whether a survivor is one of those."""
        return self.function == survivor.function and any(
            text in line for text in self.texts for line in survivor.added
        )


@dataclass(frozen=True)
class Survivor:
    """A mutant that was not killed: the function that it changes, and the lines that differ."""

    name: str
    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    reached: bool

    def __str__(self) -> str:
        lines = [self.name + ("" if self.reached else ": reached by no test")]
        return "\n".join(lines + [f"    - {line}" for line in self.removed] + [f"    + {line}" for line in self.added])


@dataclass(frozen=True)
class Count:
    """What became of the mutants that ran."""

    killed: int
    explained: tuple[Survivor, ...]
    survived: tuple[Survivor, ...]

    @property
    def ran(self) -> int:
        """How many there were."""
        return self.killed + len(self.explained) + len(self.survived)

    @property
    def score(self) -> float:
        """Percent killed of those that a test should tell."""
        return 100 * self.killed / max(1, self.killed + len(self.survived))

    def __str__(self) -> str:
        unreached = sum(not survivor.reached for survivor in self.survived)
        return (
            f"{self.ran} mutants: {self.killed} killed, {len(self.survived)} survived ({unreached} of them reached by "
            f"no test), {len(self.explained)} explained. Score: {self.score:.1f} %; "
            f"{100 * self.killed / max(1, self.ran):.1f} % with the explained ones."
        )


def explanations(text: str) -> tuple[Explanation, ...]:
    """Read the rows of a table: the function, and the texts that its mutants have, each in backticks."""
    rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `"))
    return tuple(Explanation(_spans(row[0])[0], tuple(_spans(row[1]))) for row in rows)


def _spans(field: str) -> list[str]:
    return [found.replace("\\|", "|") for found in re.findall(r"`([^`]+)`", field)]


def count(mutants: Path, explained: Sequence[Explanation]) -> Count:
    """Count the mutants under a directory that a run of mutmut left."""
    killed = 0
    left: dict[bool, list[Survivor]] = {True: [], False: []}
    for name, code in _ran(mutants):
        if code in (*KILLED, *SLOW):
            killed += 1
        else:
            survivor = _survivor(mutants, name, code not in UNREACHED)
            left[any(each.covers(survivor) for each in explained)].append(survivor)
    return Count(killed, tuple(left[True]), tuple(left[False]))


def _ran(mutants: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(mutants.rglob("*.py.meta")):
        codes: Mapping[str, int | None] = json.loads(path.read_text("utf-8"))["exit_code_by_key"]
        yield from ((name, code) for name, code in codes.items() if code is not None)


def _survivor(mutants: Path, name: str, reached: bool) -> Survivor:
    module, _, variant = name.rpartition(".")
    plain, _, _ = variant.rpartition("__mutmut_")
    sources = _functions(mutants / f"{module.replace('.', '/')}.py")
    before, after = (
        re.sub(r"def \w+", "def", sources[each], count=1).splitlines() for each in (f"{plain}__mutmut_orig", variant)
    )
    changed = list(difflib.ndiff(before, after))
    removed, added = (tuple(line[2:].strip() for line in changed if line.startswith(mark)) for mark in ("- ", "+ "))
    function = re.sub(r"^x_?ǁ?", "", plain).replace("ǁ", ".")
    return Survivor(name, f"{module}.{function}", removed, added, reached)


@lru_cache
def _functions(path: Path) -> Mapping[str, str]:
    source = path.read_text("utf-8")
    lines = source.splitlines()
    return {
        node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]).strip()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def main(words: Sequence[str] | None = None) -> int:
    """Print the count and what survived, and return the exit code."""
    parser = argparse.ArgumentParser(description="Count what a mutation run left.")
    parser.add_argument("--mutants", type=Path, default=Path("mutants"), help="where mutmut ran")
    parser.add_argument("--least", type=float, default=LEAST, help="percent that have to be killed")
    chosen = parser.parse_args(words)
    found = count(chosen.mutants, explanations(EXPLAINED.read_text("utf-8")))
    if not found.ran:
        print(f"no mutant ran: there are no results under {chosen.mutants}", file=sys.stderr)
        return 3
    print(*found.survived, found, sep="\n")
    return int(found.score < chosen.least)


if __name__ == "__main__":
    sys.exit(main())
