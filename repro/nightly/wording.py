"""Changes and ledgers in words: plain text, Markdown that fits where it is posted, JSON.

Whatever comes from a library (error messages, versions) is shown as code in Markdown, so that it can neither format the
page nor call anyone by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from repro.nightly import changes as kinds
from repro.nightly.changes import Change
from repro.nightly.ledger import Ledger
from repro.show.terminal import counted
from repro.vocabulary import TRAINS

BODY_LIMIT = 65_536
"""What GitHub takes as the body of an issue, in characters. Kept in bytes here, which is never more than that."""
LINE_LIMIT = 1_500
SUMMARY_LIMIT = 1_000_000
"""Just below what GitHub takes as a job's summary (1 MiB)."""

HEADINGS = {
    kinds.APPEARS: "Failures that appeared",
    kinds.VERDICT: "Verdicts that changed",
    kinds.UNDECLARED: "Outcomes that are not as declared",
    kinds.BUDGET: "Peaks outside of their budgets",
    kinds.DRIFT: "Gradients that drifted",
    kinds.DISAPPEARS: "Failures that disappeared",
    kinds.FRONTIER: "Frontiers that moved",
    kinds.OTHERWISE: "Outcomes that changed otherwise",
    kinds.PEAK: "Peaks that moved",
    kinds.UNOBSERVED: "No longer observed",
    kinds.UNJUDGED: "No longer judged",
    kinds.GONE: "Cells that are gone",
    kinds.UNCOVERED: "Releases not covered yet",
    kinds.COVERED: "Releases covered now",
}


def as_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return changes as JSON values, each with what to do about it."""
    return [
        {**asdict(change), "news": change.news, "says": sentence(change), "to_do": to_do(change)} for change in changes
    ]


def sentence(change: Change) -> str:
    """Say in one sentence what changed."""
    where = f"in transformers {change.transformers}" if change.transformers else ""
    device = f" (torch {change.torch}, {change.device})" if change.torch else ""
    if change.kind == kinds.UNCOVERED:
        return f"transformers {change.transformers} is out ({change.detail}), and nothing was observed there yet"
    if change.kind in (kinds.COVERED, kinds.GONE):
        status = change.after if change.kind == kinds.COVERED else change.before
        verb = "is observed now" if change.kind == kinds.COVERED else "was observed before, and is not now"
        return f"{change.failure} {verb} {where}{device}: the reported run: {status or 'no outcome'}"
    if change.kind == kinds.FRONTIER:
        return f"{change.failure}{device}: {change.before} -> {change.after}"
    if change.claim:
        after = change.after or "not judged"
        lost = "; a cure that worked no longer does" if change.before == "resolves" and change.after else ""
        return f"{change.failure}: {change.claim}: {change.before} -> {after} {where}{device}{lost} ({change.detail})"
    return f"{_good_news(change)}{change.failure}: {_what(change)} {where}{device}: {_moved(change)}"


def _good_news(change: Change) -> str:
    return "Good news: " if change.kind == kinds.DISAPPEARS else ""


def _what(change: Change) -> str:
    levels = ", ".join(f"{name}={level}" for name, level in change.configuration.items()) or "the plain run"
    levels = "the reported run" if change.reported else levels
    if not change.configuration and change.kind in (kinds.BUDGET, kinds.PEAK):
        return change.trials[0]
    more = f" and {len(change.trials) - 1} more like it" if len(change.trials) > 1 else ""
    return f"{levels}{more}"


def _moved(change: Change) -> str:
    if change.kind == kinds.UNDECLARED:
        return f"declared: {change.declared}; observed: {change.after}"
    text = f"{change.before} -> {change.after}" if change.before is not None else str(change.after or "no outcome")
    declared = f"; declared: {change.declared}" if change.declared else ""
    return f"{text}{declared}{f' ({change.detail})' if change.detail else ''}"


def to_do(change: Change) -> str:
    """Say what a maintainer should do about a change; nothing where there is nothing to do."""
    if change.kind == kinds.DISAPPEARS:
        return _after_a_disappearance(change)
    if change.kind == kinds.UNDECLARED and change.after == TRAINS:
        return _after_a_disappearance(change)
    if change.kind in (kinds.APPEARS, kinds.OTHERWISE, kinds.UNDECLARED):
        if change.declared is not None and change.declared == change.after:
            return "The trigger predicts it: the release's mechanism changed, and nothing has to be declared anew."
        return f"{_rerun(change)}. Then correct the trigger, or report it upstream."
    if change.kind == kinds.VERDICT:
        return f"See the evidence: repro verdicts {change.failure} --json"
    if change.kind in (kinds.BUDGET, kinds.PEAK):
        return "If the new peak is right: repro budgets update, and commit the file with the reason."
    if change.kind == kinds.DRIFT:
        return _rerun(change)
    if change.kind == kinds.UNCOVERED:
        return f"repro matrix --transformers {change.transformers}"
    return ""


def _rerun(change: Change) -> str:
    return f"See it: repro run {change.failure} --trial {change.trials[0]}"


def _after_a_disappearance(change: Change) -> str:
    if change.declared == TRAINS:
        return (
            "The trigger predicts it: the release's mechanism changed, and the declaration still holds. If no "
            f"supported release has {change.failure} any more, retire it (below)." + _retire(change)
        )
    return (
        f"{change.failure} no longer reproduces where it is declared to. If it still does elsewhere, narrow the "
        "trigger in its catalogue file, so that it predicts both." + _retire(change)
    )


def _retire(change: Change) -> str:
    return (
        f' To retire the entry, set retired="{change.transformers}: why" in its catalogue file: it is kept, with '
        "version and reason, is run no more, and its id is never used again."
    )


def text(changes: Sequence[Change]) -> str:
    """Return changes as plain text."""
    blocks = []
    for kind, group in _by_kind(changes):
        lines = [HEADINGS[kind]]
        for change in group:
            lines.append(f"  {sentence(change)}")
            if todo := to_do(change):
                lines.append(f"    {todo}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "nothing changed"


def _by_kind(changes: Sequence[Change]) -> Iterator[tuple[str, list[Change]]]:
    for kind in kinds.KINDS:
        if group := [change for change in changes if change.kind == kind]:
            yield kind, group


def markdown(changes: Sequence[Change], *, limit: int = SUMMARY_LIMIT) -> str:
    """Return changes as Markdown of at most `limit` bytes; what does not fit is counted."""
    lines = list(_markdown_lines(changes)) or ["Nothing changed."]
    return fit(lines, limit)


def _markdown_lines(changes: Sequence[Change]) -> Iterator[str]:
    for kind, group in _by_kind(changes):
        yield f"### {HEADINGS[kind]} ({len(group)})\n"
        said = ""
        for change in group:
            yield f"* {code(sentence(change))}"
            todo = to_do(change)
            if todo and todo != said:
                yield f"  {code(todo)}"
            said = todo
        yield ""


def code(text: str, limit: int = LINE_LIMIT) -> str:
    """Return text as Markdown code on one line, whatever is in it."""
    sayable = text.encode(errors="replace").decode()
    clean = " ".join(sayable.replace("`", "'").split())
    return f"`{clean if len(clean) <= limit else clean[: limit - 3] + '...'}`"


def fit(lines: Sequence[str], limit: int) -> str:
    """Join lines within `limit` bytes of UTF-8, saying how many were left out. Raises ValueError below 200 bytes."""
    if limit < 200:
        raise ValueError("nothing sensible fits into less than 200 bytes")
    whole = "\n".join(lines) + "\n"
    if _size(whole) <= limit:
        return whole
    room = limit - 100
    kept: list[str] = []
    for line in lines:
        room -= _size(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(
        [*kept, "", f"... and {len(lines) - len(kept)} more lines; `repro diff` and `repro ledger` show all"]
    )


def _size(text: str) -> int:
    return len(text.encode())


def ledger_as_json(found: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON values."""
    cells = [{**asdict(line), "green": line.green} for line in found.lines]
    return {
        "green": found.green,
        "trouble": list(found.trouble),
        "counts": found.counts,
        "cells": cells,
        "unplanned": list(found.unplanned),
    }


def ledger_markdown(found: Ledger, *, limit: int = SUMMARY_LIMIT) -> str:
    """Return a ledger as Markdown: the counts, then every cell that is not green."""
    return fit(list(ledger_lines(found)), limit)


def ledger_lines(found: Ledger) -> Iterator[str]:
    """Yield the lines of a ledger in Markdown."""
    yield f"### What ran: {'all that was planned' if found.green else 'NOT all that was planned'}\n"
    counts = ", ".join(f"{count} {state}" for state, count in found.counts.items())
    yield f"{counted(len(found.lines), 'cell')}: {counts or 'no trials'}\n"
    for trouble in found.trouble:
        yield f"* {code(trouble)}"
    for line in found.lines:
        if not line.green:
            yield f"* {code(line.name)}: {code('; '.join(line.trouble), 400)}"
    for line in found.lines:
        if line.skipped:
            yield f"* {code(line.name)}: skipped: {code(line.skipped, 400)}"
    yield ""
