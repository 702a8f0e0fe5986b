"""Words: what a maintainer is told of a change or a ledger, whole, in every form."""

from __future__ import annotations

from typing import Any

import pytest

from repro.nightly import changes as kinds
from repro.nightly.changes import Change
from repro.nightly.ledger import Fate, Ledger, Line
from repro.nightly.wording import (
    LINE_LIMIT,
    as_json,
    code,
    fit,
    ledger_as_json,
    ledger_markdown,
    markdown,
    sentence,
    text,
    to_do,
)

PREDICTED = "The trigger predicts it: the release's mechanism changed, and "
RETIRE = (
    ' To retire the entry, set retired="5.0.0: why" in its catalogue file: it is kept, with version and reason, is run '
    "no more, and its id is never used again."
)


@pytest.mark.parametrize(
    ("change", "todo"),
    [
        (
            Change(kinds.DISAPPEARS, "f", "5.0.0", before="x", after="trains", declared="trains"),
            f"{PREDICTED}the declaration still holds. If no supported release has f any more, retire it (below)."
            f"{RETIRE}",
        ),
        (
            Change(kinds.UNDECLARED, "f", "5.0.0", after="trains", declared="x"),
            "f no longer reproduces where it is declared to. If it still does elsewhere, narrow the trigger in its "
            f"catalogue file, so that it predicts both.{RETIRE}",
        ),
        (
            Change(kinds.APPEARS, "f", "5.0.0", before="trains", after="x", declared="x"),
            f"{PREDICTED}nothing has to be declared anew.",
        ),
        (
            Change(kinds.OTHERWISE, "f", "5.0.0", before="y", after=None, trials=("t",)),
            "See it: repro run f --trial t. Then correct the trigger, or report it upstream.",
        ),
    ],
)
def test_what_to_do_depends_on_what_the_trigger_says(change: Change, todo: str) -> None:
    assert to_do(change) == todo


def test_only_a_cure_that_is_lost_is_told_as_lost() -> None:
    def said(before: str, after: str | None) -> str:
        return sentence(Change(kinds.VERDICT, "f", "5.0.0", claim="c", before=before, after=after, detail="why"))

    assert said("no effect", "resolves") == "f: c: no effect -> resolves in transformers 5.0.0 (why)"
    assert said("resolves", None) == "f: c: resolves -> not judged in transformers 5.0.0 (why)"
    lost = "f: c: resolves -> moves it in transformers 5.0.0; a cure that worked no longer does (why)"
    assert said("resolves", "moves it") == lost


def test_a_peak_of_the_plain_run_is_named_by_its_trial_and_one_of_a_configuration_by_that() -> None:
    for kind in (kinds.BUDGET, kinds.PEAK):
        assert sentence(Change(kind, "f", "5.0.0", before=1, after=2, trials=("f.t",))).startswith("f: f.t in ")
        told = Change(kind, "f", "5.0.0", before=1, after=2, configuration={"a": "b"}, trials=("f.t",))
        assert sentence(told).startswith("f: a=b in ")


def test_a_program_gets_what_a_person_is_told() -> None:
    change = Change(kinds.DRIFT, "f", "5.0.0", before=0.1, after=0.5, trials=("t",))
    [row] = as_json([change])
    assert (row["kind"], row["failure"], row["trials"], row["news"]) == (kinds.DRIFT, "f", ("t",), True)
    assert (row["says"], row["to_do"]) == (sentence(change), to_do(change))
    assert as_json([Change(kinds.COVERED, "f", "5.0.0")])[0]["news"] is False


def test_changes_of_a_kind_stand_under_one_heading_and_the_same_advice_is_given_once() -> None:
    drift, other = (Change(kinds.DRIFT, "f", release, before=0, after=1, trials=("t",)) for release in "12")
    peak = Change(kinds.PEAK, "f", "1", before=1, after=2, trials=("u",))
    assert markdown([peak, drift, other]).splitlines() == [
        "### Gradients that drifted (2)",
        "",
        f"* `{sentence(drift)}`",
        "  `See it: repro run f --trial t`",
        f"* `{sentence(other)}`",
        "",
        "### Peaks that moved (1)",
        "",
        f"* `{sentence(peak)}`",
        f"  `{to_do(peak)}`",
        "",
    ]
    assert text([peak, drift]) == (
        f"Gradients that drifted\n  {sentence(drift)}\n    {to_do(drift)}\n\n"
        f"Peaks that moved\n  {sentence(peak)}\n    {to_do(peak)}"
    )
    assert markdown([]) == "Nothing changed.\n"


def test_code_is_cut_to_its_limit_and_holds_what_no_encoding_can() -> None:
    assert code("x" * LINE_LIMIT) == f"`{'x' * LINE_LIMIT}`"
    assert code("x" * (LINE_LIMIT + 1)) == f"`{'x' * (LINE_LIMIT - 3)}...`"
    assert code("abcdef", 5) == "`ab...`"
    assert code("a `b`\n  c") == "`a 'b' c`"
    assert code("a\udc80b") == "`a?b`"


def test_what_is_cut_uses_the_room_that_there_is() -> None:
    lines = ["x" * 39] * 100
    whole = len("\n".join(lines)) + 1
    assert fit(lines, whole) == "\n".join(lines) + "\n"
    for limit in (200, 220, 1000, whole - 1):
        cut = fit(lines, limit)
        assert limit - 100 - 40 < cut.index("\n\n... and ") + 1 <= limit - 100
        assert cut.endswith(" more lines; `repro diff` and `repro ledger` show all")
    assert fit([], 200) == "\n"
    with pytest.raises(ValueError, match="less than 200 bytes"):
        fit([], 199)


def ledgers() -> tuple[Ledger, Ledger]:
    good = Line("transformers 5", ("c",), {"observed": 2}, ())
    bad = Line(
        "transformers `6`", (), {"observed": 1, "missing": 1}, ("1 missing", "x"), (Fate("t", "missing", "why"),)
    )
    return Ledger((good,)), Ledger((good, bad), ("the plan is odd",), ("other",))


def test_a_ledger_is_its_counts_its_trouble_and_every_cell_that_is_not_green() -> None:
    green, red = ledgers()
    assert ledger_markdown(green) == "### What ran: all that was planned\n\n1 cell: 2 observed\n\n\n"
    assert ledger_markdown(red).splitlines() == [
        "### What ran: NOT all that was planned",
        "",
        "2 cells: 3 observed, 1 missing",
        "",
        "* `the plan is odd`",
        "* `transformers '6'`: `1 missing; x`",
        "",
    ]
    assert "0 cells: no trials" in ledger_markdown(Ledger(()))
    long = Line("c", (), {}, ("y" * 500,))
    assert f"`{'y' * 397}...`" in ledger_markdown(Ledger((long,)))


def test_a_ledger_for_programs_says_all_of_it() -> None:
    rows: list[dict[str, Any]] = [ledger_as_json(found) for found in ledgers()]
    cells = [
        {
            "name": "transformers 5",
            "cells": ("c",),
            "counts": {"observed": 2},
            "trouble": (),
            "fates": (),
            "skipped": "",
            "green": True,
        },
        {
            "name": "transformers `6`",
            "cells": (),
            "counts": {"observed": 1, "missing": 1},
            "trouble": ("1 missing", "x"),
            "fates": ({"trial": "t", "state": "missing", "detail": "why"},),
            "skipped": "",
            "green": False,
        },
    ]
    assert rows == [
        {"green": True, "trouble": [], "counts": {"observed": 2}, "cells": cells[:1], "unplanned": []},
        {
            "green": False,
            "trouble": ["the plan is odd"],
            "counts": {"observed": 3, "missing": 1},
            "cells": cells,
            "unplanned": ["other"],
        },
    ]
