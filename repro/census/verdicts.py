"""From the stored facts of a census trial to its verdict: pure functions, for old files as well as new ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from repro.vocabulary import GRADIENTS_MISSING, GRADIENTS_WRONG, UNFINISHED, Facts

EQUAL = "equal"
RAISES = "raises"
NOT_ENGAGED = "not engaged"
NOT_BUILT = "not built"
ENDED = UNFINISHED[:3]
"""How a process ends under checkpointing: crashed, timed out, over its memory limit."""
FAULTS = (RAISES, GRADIENTS_MISSING, GRADIENTS_WRONG, *ENDED)
"""Verdicts that say something is wrong with the model under checkpointing: its plain run was sound."""

VERDICTS = (EQUAL, *FAULTS, NOT_ENGAGED, NOT_BUILT)


def verdict(facts: Facts) -> str:
    """Return one of `VERDICTS` for the facts of one class under one kind of checkpointing."""
    end = str(facts["end"])
    if end in UNFINISHED or end == NOT_BUILT:
        return end
    if end == "raised":
        return RAISES
    if not facts.get("engaged"):
        # Equal gradients prove nothing when the checkpoint function was never called.
        return NOT_ENGAGED
    gradients = facts["gradients"]
    if gradients["missing"]:
        return GRADIENTS_MISSING
    if gradients["worst_ratio"] > 1.0 or gradients["not_finite"]:
        return GRADIENTS_WRONG
    return EQUAL


def detail(facts: Facts) -> str:
    """Say in one line what was seen, and by which mechanism as far as it is proved."""
    judged = verdict(facts)
    if judged == NOT_BUILT or judged in UNFINISHED:
        return "; ".join(filter(None, (str(facts.get("reason", "")), mechanism(facts))))
    if judged == NOT_ENGAGED:
        return str(facts.get("reason") or "enabled without an error, but the checkpoint function was never called")
    if judged == EQUAL:
        return f"checkpoint function called {facts['engaged']} times"
    return "; ".join(filter(None, (_symptom(facts), mechanism(facts))))


def lacking(facts: Facts) -> str:
    """Return the package that was not installed where a class could not be built; empty when it was not that."""
    if verdict(facts) != NOT_BUILT:
        return ""
    said = re.search(r"No module named '(\w+)|requires the (\w+) library", str(facts.get("reason", "")))
    return (said.group(1) or said.group(2)) if said else ""


def mechanism(facts: Facts) -> str:
    """Say what stands behind a fault, and whether an experiment proved it or it was only seen."""
    travelling, cut_off = facts.get("travelling") or {}, facts.get("cut_off") or {}
    moved, livened = facts.get("by_position"), facts.get("with_live_inputs")
    parts = []
    if travelling and moved == EQUAL:
        parts.append(f"proved: {_listed(travelling)} kept its live graph; passed by position, gradients are equal")
    elif travelling and facts.get("use_reentrant"):
        also = f"; passed by position: {moved}" if moved else ""
        parts.append(f"seen, not proved: {_listed(travelling)} travels past the arguments{also}")
    if cut_off and livened == EQUAL:
        parts.append(
            f"proved: no argument of {_listed(cut_off)} needs a gradient; when one does, all gradients are equal"
        )
    elif cut_off and facts.get("use_reentrant"):
        parts.append(f"seen, not proved: no argument of {_listed(cut_off)} needs a gradient")
    if facts.get("caches"):
        parts.append(f"seen, not proved: a cache travels by keyword: {_listed(facts['caches'])}")
    return "; ".join(parts)


def _symptom(facts: Facts) -> str:
    raised = facts.get("exception")
    if raised:
        return f"{raised['type']}: {raised['message'].splitlines()[0][:200] if raised['message'] else ''}"
    gradients = facts["gradients"]
    if gradients["missing"]:
        lost = f"{gradients['missing']} of {gradients['parameters']} parameters without gradient"
        return f"{lost}, e.g. {gradients['missing_names'][0]}"
    return (
        f"{gradients['wrong']} of {gradients['parameters']} gradients differ, worst {gradients['worst_name']} "
        f"({gradients['worst_ratio']:.3g} times the tolerance)"
    )


def _listed(counts: dict[str, int]) -> str:
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def summary(seen: Sequence[Facts]) -> str:
    """Count the verdicts of several facts in one line."""
    counts = Counter(verdict(facts) for facts in seen)
    return ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name]) or "nothing to judge"
