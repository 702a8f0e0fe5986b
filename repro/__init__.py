"""Reproduces training failures of speech models and measures what each cure is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.guard.callback import ReproGuard
    from repro.guard.check import check

__all__ = ["ReproGuard", "check"]


def __getattr__(name: str) -> Any:
    """Import what looks at a live trainer only when it is asked for: torch is not needed for anything else here."""
    if name == "check":
        from repro.guard.check import check

        return check
    if name == "ReproGuard":
        from repro.guard.callback import ReproGuard

        return ReproGuard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
