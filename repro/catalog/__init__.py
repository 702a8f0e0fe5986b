"""The known failures, one per file. A file that is added here is found by itself."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import lru_cache

from repro.vocabulary import Failure


class UnknownFailureError(LookupError):
    """No failure has this id; the message names the nearest."""


@lru_cache(maxsize=1)
def failures() -> dict[str, Failure]:
    """Return every failure by id, in the order of the ids. Each module of this package declares one, as `FAILURE`."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [module.FAILURE for module in modules]
    return {failure.id: failure for failure in sorted(found, key=lambda failure: failure.id)}


def find(name: str) -> Failure:
    """Return the failure with this id. Raises UnknownFailureError, with the nearest id, when there is none."""
    known = failures()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UnknownFailureError(f"no failure {name!r}.{hint} Known: {', '.join(known)}.")
