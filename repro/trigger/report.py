"""What `repro trigger` found, as JSON."""

from __future__ import annotations

from typing import Any

from repro.trigger import wording
from repro.trigger.conditions import Condition, Pair, conditions, everything
from repro.trigger.declared import Comparison, compare
from repro.trigger.ranges import Range, ranges
from repro.trigger.table import CellTable, Contradiction, Observed
from repro.vocabulary import TRAINS, Configuration, Failure, Scope


def report(failure: Failure, observed: Observed, scope: Scope | None = None) -> dict[str, Any]:
    """Return everything that the stored observations say about a failure's trigger, as JSON values."""
    tables = [table for table in observed.tables if scope in (None, table.scope) and table.rows]
    contradictions = [item for item in observed.contradictions if scope in (None, item.scope)]
    spans = ranges(tables)
    kinds = dict.fromkeys((span.scope, span.device) for span in spans)
    possible = {(scope, device): everything(failure, scope, device) for scope, device in kinds}
    return {
        "failure": failure.id,
        "declared": failure.trigger.says,
        "ranges": [_range(failure, span, possible[span.scope, span.device]) for span in spans],
        "comparison": _comparison(failure, compare(failure, tables)),
        "contradictions": [_contradiction(failure, item) for item in contradictions],
        "unfinished": observed.unfinished,
        "foreign": observed.foreign,
    }


def _range(failure: Failure, span: Range, possible: frozenset[Configuration]) -> dict[str, Any]:
    return {
        "scope": span.scope,
        "first": span.releases[0],
        "last": span.releases[-1],
        "releases": list(span.releases),
        "torch": span.torch,
        "device": span.device,
        "cells": [table.cell for table in span.tables],
        "configurations": len(span.rows),
        "possible": len(possible) or None,
        "conditions": [_condition(failure, condition, span) for condition in conditions(failure, span, possible)],
    }


def _condition(failure: Failure, condition: Condition, span: Range) -> dict[str, Any]:
    return {
        "outcome": condition.outcome,
        "configurations": condition.rows,
        "sentence": wording.sentence(condition),
        "formula": wording.formula(condition),
        "terms": [{literal.factor: list(literal.levels) for literal in term} for term in condition.terms],
        "evidence": [
            {
                "term": number,
                "literal": wording.atom(literal),
                "factor": literal.factor,
                **_pair(failure, literal.evidence),
            }
            for number, term in enumerate(condition.terms, 1)
            for literal in term
        ],
        "complete": condition.complete,
        "proven": condition.proven,
        "never_matters": [
            {
                "factor": factor,
                "pairs": pairs,
                "alone": alone,
                "claims": _claims_on(failure, condition.outcome, factor, span),
            }
            for alone, counted in ((True, condition.never_matters), (False, condition.nor_these))
            for factor, pairs in counted.items()
        ],
        "untested": list(condition.untested),
    }


def _claims_on(failure: Failure, outcome: str, factor: str, span: Range) -> list[str]:
    """Return the advice that turns on a factor alone, between levels that were observed: it cannot help here."""
    if outcome == TRAINS:
        return []
    seen = {configuration[factor] for configuration in span.rows}
    return [
        claim.id
        for claim in failure.claims
        if set(claim.change) == {factor} and {claim.change[factor], (claim.base or failure.reported)[factor]} <= seen
    ]


def _pair(failure: Failure, pair: Pair | None) -> dict[str, Any]:
    if pair is None:
        return {"cell": None, "with": None, "without": None}
    sides = {
        side: {
            "trial": row.trial,
            "level": row.configuration[pair.factor],
            "outcome": row.outcome,
            "configuration": failure.deviations(row.configuration),
            "observations": list(row.records),
        }
        for side, row in (("with", pair.one), ("without", pair.other))
    }
    return {"cell": pair.cell, **sides}


def _comparison(failure: Failure, comparison: Comparison) -> dict[str, Any]:
    return {
        "agreed": comparison.agreed,
        "silent": comparison.silent,
        "no_mechanism": list(comparison.no_mechanism),
        "differences": [
            {
                **_where(difference.table),
                "trial": difference.row.trial,
                "configuration": failure.deviations(difference.row.configuration),
                "expected": difference.expected,
                "observed": difference.row.outcome,
                "observations": list(difference.row.records),
            }
            for difference in comparison.differences
        ],
    }


def _where(table: CellTable) -> dict[str, Any]:
    return {"cell": table.cell, "transformers": table.transformers, "scope": table.scope}


def _contradiction(failure: Failure, item: Contradiction) -> dict[str, Any]:
    return {
        "cell": item.cell,
        "scope": item.scope,
        "trial": item.trial,
        "configuration": failure.deviations(item.configuration),
        "outcomes": {outcome: list(ids) for outcome, ids in item.outcomes.items()},
    }
