"""The pages as Markdown, for `docs/`: an index and a page per failure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from repro.show.facts import (
    ABSENT,
    AFFECTED,
    GOOD,
    TOLD_FROM,
    UNKNOWN,
    ClaimFacts,
    FailureFacts,
    MemoryFacts,
    Reference,
    Stretch,
    TriggerFacts,
    stretches,
)

MADE = "<!-- Written by `repro docs` from the stored reference results. Do not edit: run it again. -->"
INDEX = "README.md"


def documents(reference: Reference) -> dict[str, str]:
    """Return the text of every file of `docs/`, by name."""
    files = {INDEX: _index(reference)}
    for failure in reference.failures:
        files[f"{failure.id}.md"] = _text(_page(failure))
    return files


def write(reference: Reference, directory: Path) -> list[Path]:
    """Write the files, and remove pages of failures that are gone. Returns what was written."""
    texts = documents(reference)
    directory.mkdir(parents=True, exist_ok=True)
    for path in _ours(directory):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in texts]


def out_of_step(reference: Reference, directory: Path) -> list[str]:
    """Name the files that are not what the results say: changed, missing or left over."""
    texts = documents(reference)
    there = {path.name: path.read_text(encoding="utf-8") for path in _ours(directory)}
    missing_or_changed = [name for name, text in texts.items() if there.get(name) != text]
    return missing_or_changed + [name for name in there if name not in texts]


def _ours(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("*.md")) if path.read_text(encoding="utf-8").startswith(MADE)]


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def plain(text: str) -> str:
    """Return text that cannot be taken for a table's border or for HTML; what is between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    escaped = [part if part.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts]
    return "".join(escaped).replace("|", r"\|")


def code(text: str) -> str:
    """Return text as code within a line; backticks inside are kept, as Markdown wants it."""
    inner = " ".join(text.split()).replace("|", r"\|")
    fence = "`" * (max(map(len, re.findall("`+", inner)), default=0) + 1)
    pad = " " if "`" in inner else ""
    return f"{fence}{pad}{inner}{pad}{fence}"


def block(text: str, language: str = "") -> Iterator[str]:
    """Yield a block of code, fenced longer than any fence inside."""
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    yield from (f"{fence}{language}", text.rstrip("\n"), fence, "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _index(reference: Reference) -> str:
    lines = [MADE, "# Known failures", "", reference.basis.sentence, ""]
    rows = (
        (f"[{failure.id}]({failure.id}.md)", plain(failure.title), plain(failure.frontier.sentence), _cures(failure))
        for failure in reference.failures
    )
    lines += _table(("failure", "what happens", "where it was seen", "what cures it there"), rows)
    lines += ["## By release", ""]
    lines += _table(("transformers", *(failure.id for failure in reference.failures)), _by_release(reference))
    lines += ["Neighbouring releases of which the same was observed share a line. An empty field: not observed.", ""]
    lines += ["## How to read this", "", *READING]
    return _text(lines)


READING = (
    "A claim is a piece of advice people are given, or a cause they are told. Its verdict comes from running it:",
    "",
    "* *resolves*: with it the run trains, with finite losses and the gradients of the same run without the feature;",
    "* *no effect*: the failure stays; *partly*: a lower peak, still over; *moves it*: another failure instead;",
    "* *unavailable*: the release has no such argument; *not needed*: nothing to cure there;",
    "* *not observable*: this device cannot show it; *not judged*: what it takes to tell was not run;",
    "* *confirmed*, *refuted*: of a stated cause or fact.",
    "",
    "In each release the same trials were run: the plain run, the reported one, whatever a claim names, and all that "
    "differ from the plain or the reported run in one setting. So there is, for every setting that the failure "
    "depends on, the pair of trials that proves it; `repro trigger FAILURE` names them. Where a release has no such "
    "model there is nothing to run.",
    "",
    "Every verdict can be computed again: `repro verdicts FAILURE`, from the same stored results.",
)


def _by_release(reference: Reference) -> Iterator[tuple[str, ...]]:
    rows = [
        (release.release, "\t".join(failure.status_in(release.release) for failure in reference.failures))
        for release in reference.releases
    ]
    for stretch in stretches(rows):
        yield (stretch.where, *(_marked(status) for status in stretch.value.split("\t")))


def _marked(status: str) -> str:
    return {AFFECTED: "**affected**", GOOD: "not affected", ABSENT: ABSENT, UNKNOWN: "not known"}.get(status, "")


def _cures(failure: FailureFacts) -> str:
    if not failure.frontier.first_affected:
        return ""
    return "; ".join(plain(claim.says) for claim in failure.cures) or "none that was tried"


def _page(failure: FailureFacts) -> Iterator[str]:
    yield from (MADE, f"# {plain(failure.title)}", "", f"`{failure.id}`", "")
    if failure.retired:
        yield from (f"**Retired**: {plain(failure.retired)}", "")
    yield from (plain(failure.summary), "", f"**{plain(failure.frontier.sentence)}**", "")
    yield from _cures_to_copy(failure)
    yield from _looks(failure)
    yield from ("## Trigger", "", plain(_sentence(failure.trigger.says)), "", *_evidence(failure))
    yield from ("## Releases", "")
    rows = ((stretch.where, str(stretch.cells), plain(stretch.value)) for stretch in failure.frontier.stretches)
    yield from _table(("transformers", "cells", "the reported run"), rows)
    yield from ("## Claims", "")
    yield from _table(
        ("claim", "what is said", "what it comes to", "verdicts by release"), map(_claim_row, failure.claims)
    )
    yield from _numbers(failure)
    yield from ("## Run it again", "", *block("\n".join(failure.commands), "sh"))
    yield from ("## Sources", "", *(_source(*source) for source in failure.sources), "")
    yield from ("## What this rests on", "", failure.basis.sentence)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _cures_to_copy(failure: FailureFacts) -> Iterator[str]:
    if not failure.frontier.first_affected:
        return
    yield from ("## What cures it", "")
    if not failure.cures:
        yield from ("None of the advice that was tried.", "")
    for claim in failure.cures:
        yield from (f"* {plain(claim.says)} ({claim.id})", "")
        if claim.code:
            language = "sh" if claim.code.startswith(("pip ", "uv ")) else "python"
            yield from (f"  {line}".rstrip() for line in "\n".join(block(claim.code, language)).split("\n"))
    if failure.other_advice:
        yield from ("What people also try, measured:", "")
        yield from (f"* {plain(claim.says)} ({claim.id}): {claim.standing}" for claim in failure.other_advice)
        yield ""


def _looks(failure: FailureFacts) -> Iterator[str]:
    yield from ("## What it looks like", "")
    for symptom in failure.symptoms:
        seen = symptom.sentence
        yield from (f"*{symptom.outcome}*: {plain(symptom.says)}; {seen}.", "")
        if symptom.error:
            yield from block(symptom.error)


def _evidence(failure: FailureFacts) -> Iterator[str]:
    trigger: TriggerFacts = failure.trigger
    total = trigger.agrees + len(trigger.differs)
    silent = f" It says nothing about {trigger.silent} more." if trigger.silent else ""
    yield from (f"Predicts {trigger.agrees} of {total} observed outcomes.{silent}", "")
    yield from (f"* not as predicted: {plain(line)}" for line in trigger.differs)
    if trigger.differs:
        yield ""
    reported = ", ".join(map(code, failure.reported)) or "the plain run"
    yield from (f"The reported run ({failure.scope}): {reported}.", "")
    turns = [turn for turn in trigger.turns if turn.makes_a_difference]
    if turns:
        yield from ("One change to the reported run, where the failure is:", "")
        yield from _table(("change", "what happens then"), ((code(turn.change), plain(turn.outcome)) for turn in turns))
    same = [code(turn.change) for turn in trigger.turns if not turn.makes_a_difference]
    if same:
        yield from (f"Changes that made no difference: {', '.join(same)}.", "")
    if trigger.mechanisms:
        yield from ("What a probe saw of the releases' inner workings:", "")
        yield from _table(("transformers", "mechanism"), ((m.where, plain(m.value)) for m in trigger.mechanisms))


def _claim_row(claim: ClaimFacts) -> tuple[str, ...]:
    said = plain(claim.says) + (f" ({claim.kind})" if claim.kind == "statement" else "")
    return claim.id, said, f"**{claim.standing}**", _stretched(claim.stretches)


def _stretched(found: Sequence[Stretch]) -> str:
    if len(found) == 1:
        return found[0].value
    return "; ".join(f"{stretch.where}: {stretch.value}" for stretch in found)


def _numbers(failure: FailureFacts) -> Iterator[str]:
    told = [(claim, where, what) for claim in failure.claims for where, what in claim.details]
    if told:
        yield from ("What was seen where a claim was put to the test:", "")
        yield from _table(("claim", "transformers", "seen"), ((c.id, where, plain(what)) for c, where, what in told))
    if failure.memory:
        memory = failure.memory
        limit = f"; the capacity is {memory.capacity:,} bytes" if memory.capacity else ""
        how = f" ({memory.how})" if memory.how else ""
        yield from ("## Memory", "", f"Peaks in transformers {memory.where}{how}{limit}.", "")
        rows = ((plain(peak.run), f"{peak.bytes:,}", peak.says) for peak in memory.peaks)
        yield from _table(("run", "peak, bytes", "what became of it"), rows)
        yield from _peaks_by_release(memory)


def _peaks_by_release(memory: MemoryFacts) -> Iterator[str]:
    if memory.same:
        yield from (f"To the byte the same peaks as in {memory.where}, in every run: {', '.join(memory.same)}.", "")
    if not memory.differences:
        return
    yield from (
        f"Where runs have another peak than in {memory.where}, by {TOLD_FROM:,} bytes or more, and the functions that "
        "hold more or less then:",
        "",
    )
    rows = (
        (
            each.where,
            f"{each.bytes:+,}",
            str(each.trials),
            ", ".join(f"{code(name)} {size:+,}" for name, size in each.held_by),
        )
        for each in memory.differences
    )
    yield from _table(("transformers", "bytes", "runs", "functions, bytes"), rows)
    if not all(each.held_by for each in memory.differences):
        yield from ("Differences without functions are those of runs whose whole account was not kept.", "")


def _source(name: str, says: str, url: str) -> str:
    return f"* {name}: {plain(says)}" + (f", <{url}>" if url else "")
