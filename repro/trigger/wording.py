"""Conditions in words and as formulas."""

from __future__ import annotations

from repro.trigger.conditions import Condition, Literal
from repro.vocabulary import Level


def sentence(condition: Condition) -> str:
    """Return a condition as a sentence."""
    if not condition.terms or not condition.terms[0]:
        return f"{condition.outcome}: always" + ("" if condition.complete else ", as far as observed")
    when = "; or when ".join(_listed([_clause(literal) for literal in term]) for term in condition.terms)
    if not condition.proven:
        return f"{condition.outcome}: too few trials to tell exactly when; what fits them: when {when}"
    return f"{condition.outcome}{'' if condition.complete else ', as far as observed,'} exactly when {when}"


def formula(condition: Condition) -> str:
    """Return a condition as a formula in disjunctive normal form; `true` when the outcome always comes."""
    if not condition.terms or not condition.terms[0]:
        return "true"
    terms = [" ∧ ".join(atom(literal) for literal in term) for term in condition.terms]
    return terms[0] if len(terms) == 1 else " ∨ ".join(f"({term})" for term in terms)  # noqa: RUF001 - the sign of logic


def atom(literal: Literal) -> str:
    """Return a literal as part of a formula: the shorter of what it allows and what it excludes."""
    kind, levels = _shortest(literal)
    if kind in ("≥", "≤", "=", "≠"):
        return f"{literal.factor} {kind} {levels[0]}"
    return f"{literal.factor} {kind} {{{', '.join(map(str, levels))}}}"


def _clause(literal: Literal) -> str:
    kind, levels = _shortest(literal)
    words = {"≥": "at least ", "≤": "at most ", "=": "", "≠": "not ", "∈": "", "∉": "neither "}
    joint = " nor " if kind == "∉" else " or "
    return f"{literal.factor} is {words[kind]}{joint.join(str(level) for level in levels)}"


def _shortest(literal: Literal) -> tuple[str, tuple[Level, ...]]:
    excluded = tuple(level for level in literal.of if level not in literal.levels)
    if len(literal.levels) == 1:
        return "=", literal.levels
    if all(isinstance(level, int) for level in literal.of):
        ordered = sorted(literal.of, key=int)
        if sorted(literal.levels, key=int) == ordered[-len(literal.levels) :]:
            return "≥", (min(literal.levels, key=int),)
        if sorted(literal.levels, key=int) == ordered[: len(literal.levels)]:
            return "≤", (max(literal.levels, key=int),)
    if len(excluded) == 1:
        return "≠", excluded
    return ("∈", literal.levels) if len(literal.levels) <= len(excluded) else ("∉", excluded)


def _listed(clauses: list[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
