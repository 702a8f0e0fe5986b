"""Reference results: what a results directory says, condensed to what judging needs; they travel with the package.

One file per cell, named by the cell, its records in an order that depends on their content only: results that did not
change leave files that did not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.store.reader import read
from repro.store.records import Record, dump
from repro.store.writer import ResultsError
from repro.vocabulary import UNFINISHED, Failure

REFERENCE = Path(__file__).parent.parent / "reference"
"""Where they lie, inside the package."""

LARGEST = 1 << 20
"""Bytes that no file may exceed."""

KEPT_OF_A_CELL = (
    "schema", "kind", "id", "time", "cell", "transformers", "torch", "python", "device", "platform", "resolved",
    "exclude_newer",
)  # fmt: skip
DROPPED = (
    "twin_losses",
    "peak_rss_bytes",
    "rss_bytes",
    "pid",
    "largest_holders",
    "python",
    "phases",
    "optimizer_steps",
)
"""Fields of an observation that no verdict, outcome or page is made of."""

KEPT_OF_A_FACT: Mapping[str, tuple[str, ...]] = {
    "exception": ("type", "bases", "message"),
    "gradients": ("missing", "worst_ratio", "not_finite"),
    "memory": ("device", "source"),
    "proofs": ("checkpoint_calls",),
}
"""Of facts that have parts, the parts that a verdict, an outcome or a page is made of."""

MANY, LONG = 4, 300
"""Items of a list and characters of a text that are kept."""


class CondensingError(ResultsError):
    """Condensing would lose something that judging needs, or a file would be too large; the message says which."""


def update(failures: Iterable[Failure], results: Path, directory: Path = REFERENCE) -> list[Path]:
    """Condense a results directory into reference files, and return those written.

    A failure that was observed in `results` has its stored reference replaced whole; others keep theirs. Raises
    ResultsError when results cannot be read, and CondensingError when a verdict would differ afterwards.
    """
    fresh = read(results).records
    known = read(directory).records if directory.is_dir() else ()
    catalogue = list(failures)
    replaced = [failure for failure in catalogue if any(_is_of(record, failure.id) for record in fresh)]
    if not replaced:
        raise ResultsError(f"{results} holds no observation of any failure in the catalogue: nothing to take over.")
    names = {failure.id for failure in replaced}
    kept = [record for record in known if record["kind"] == "cell" or record.get("failure") not in names]
    records = condense([*kept, *fresh], catalogue)
    for before, its in ((fresh, replaced), (known, [failure for failure in catalogue if failure.id not in names])):
        _check_same(its, before, records)
    return _write(records, directory)


def condense(records: Sequence[Record], failures: Iterable[Failure]) -> list[Record]:
    """Return what judging needs of some records: cells, mechanisms, and one observation for each outcome of a trial.

    Several outcomes of one trial contradict each other, which is a finding: each of them stays, its newest record.
    """
    by_failure = {failure.id: failure for failure in failures}
    newest: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda record: (record["time"], record["id"])):
        kind, cell = record["kind"], record["cell"]
        if kind == "cell":
            newest[kind, cell] = {name: record[name] for name in KEPT_OF_A_CELL if name in record}
        elif kind == "mechanism":
            newest[kind, cell, record["failure"]] = record
        elif kind == "observation":
            declared = by_failure.get(record["failure"])
            outcome = declared.outcome(record) if declared else ""
            newest[kind, cell, record["failure"], record["trial"], outcome] = _observation(record, declared)
    seen_to_an_end = {key[:4] for key in newest if key[0] == "observation" and key[4] not in UNFINISHED}
    used = {key[1] for key in newest if key[0] == "observation"}
    return [
        record
        for key, record in sorted(newest.items())
        if key[1] in used and not (key[0] == "observation" and key[4] in UNFINISHED and key[:4] in seen_to_an_end)
    ]


def _is_of(record: Record, failure: str) -> bool:
    return bool(record["kind"] == "observation" and record["failure"] == failure)


def _observation(record: Record, failure: Failure | None) -> Record:
    kept = {name: _bounded(_parts(name, value)) for name, value in record.items() if name not in DROPPED}
    if failure is not None and set(record["configuration"]) <= {factor.name for factor in failure.factors}:
        kept["configuration"] = failure.deviations(failure.stored(record["configuration"]))
    return kept


def _parts(name: str, value: Any) -> Any:
    parts = KEPT_OF_A_FACT.get(name)
    return {part: value[part] for part in parts if part in value} if parts and isinstance(value, Mapping) else value


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONG else value[:LONG] + " ..."
    if isinstance(value, Mapping):
        return {name: _bounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item) for item in value[:MANY]]
    return value


def _check_same(failures: Sequence[Failure], whole: Sequence[Record], condensed: Sequence[Record]) -> None:
    """Refuse to store what would have another outcome, or be judged otherwise, than the whole."""
    from repro.judge.verdicts import verdicts

    cells = {record["cell"] for record in whole}
    for failure in failures:
        if _outcomes(failure, whole) != _outcomes(failure, [r for r in condensed if r["cell"] in cells]):
            raise CondensingError(
                f"condensed results of {failure.id} would have other outcomes than the whole. "
                "Keep the facts that its symptoms look at (repro/store/reference.py)."
            )
        before, after = (
            {(row["cell"], row["claim"], row["spelling"]): row["verdict"] for row in verdicts(failure, records)}
            for records in (whole, [record for record in condensed if record["cell"] in cells])
        )
        if before != after:
            cell, claim, _ = next(key for key in before if before[key] != after.get(key))
            raise CondensingError(
                f"condensed results of {failure.id} would be judged otherwise than the whole: claim {claim} in {cell}. "
                "Keep the fact that it looks at (repro/store/reference.py)."
            )


def _outcomes(failure: Failure, records: Sequence[Record]) -> set[tuple[str, str, str]]:
    found = ((r["cell"], r["trial"], failure.outcome(r)) for r in records if _is_of(r, failure.id))
    return {(cell, trial, outcome) for cell, trial, outcome in found if outcome not in UNFINISHED}


def _write(records: Sequence[Record], directory: Path) -> list[Path]:
    texts: dict[str, list[str]] = defaultdict(list)
    for record in records:
        texts[record["cell"]].append(dump(record) + "\n")
    for cell, lines in texts.items():
        if (size := sum(map(len, lines))) > LARGEST:
            raise CondensingError(f"reference results of {cell} would have {size} bytes; a file may have {LARGEST}.")
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {directory / f"{cell}.jsonl": "".join(lines) for cell, lines in texts.items()}
    for path in set(directory.glob("*.jsonl")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return sorted(wanted)
