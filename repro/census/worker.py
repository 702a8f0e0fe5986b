"""The process that runs census trials: `python -m repro.census.worker`, driven by `repro.census.supervisor`.

Each line of standard input is a request `{"family", "every_class", "skip"}`; each line of standard output is an event:
`ready` once the library is imported, `began` (with the class) before a class, `facts` per class and kind of
checkpointing, `family done`. A model must not be able to disturb this: it gets an empty standard input, and what it
prints goes to standard error. The kernel bounds its memory as well, in case it grows faster than the supervisor looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

MEMORY_VARIABLE = "REPRO_CENSUS_MEMORY"
"""Environment variable with the limit of private memory, in bytes."""

_CLASSES_PER_TYPE = 2
"""How many classes of one model type are run when not every class is asked for."""


_KEPT: list[Any] = []
"""What must not be collected: operators end with the library object that declared them."""


def main() -> None:
    """Answer requests until standard input ends."""
    requests, events = _private_streams()
    _end_with_supervisor()
    _bound_memory()
    _quiet()

    def tell(event: str, **fields: Any) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")
        events.flush()

    import torch

    torch.set_num_threads(1)
    _let_torchvision_be_imported()
    import transformers
    import transformers.modeling_utils

    transformers.logging.set_verbosity_error()
    tell("ready", transformers=transformers.__version__, torch=torch.__version__)
    for line in requests:
        request = json.loads(line)
        for event in _family(request, tell):
            tell("facts", **event)
        tell("family done", family=request["family"])


def _family(request: dict[str, Any], tell: Any) -> Iterator[dict[str, Any]]:
    from repro.census import classes, trial

    try:
        found = classes.by_preference(classes.supporting(classes.modules_of(request["family"])))
    except Exception as error:  # a family whose own dependencies are not installed
        reason = f"importing the modeling code: {type(error).__name__}: {error}"[:500]
        for use_reentrant in (False, True):
            facts = {"use_reentrant": use_reentrant, "end": "not built", "reason": reason, "engaged": 0}
            yield {"class": "", "model": request["family"], **facts}
        return
    chosen = found if request["every_class"] else Chosen(found)
    for model_class in chosen:
        if model_class.__name__ in request["skip"]:
            continue
        name = {"class": model_class.__name__, "model": classes.model_type(model_class)}
        tell("began", **name)
        built = False
        for facts in trial.observe(model_class, lambda noted: tell("noted", noted=noted)):
            built = facts["end"] != "not built"
            yield {**name, **facts}
        if isinstance(chosen, Chosen):
            chosen.judged(built=built)


class Chosen:
    """The classes that stand for their model types: the first that can be built, and one more with other layers."""

    def __init__(self, found: list[Any]) -> None:
        self._found = found
        self._last_built = False

    def judged(self, *, built: bool) -> None:
        """Learn whether the class just handed out could be built."""
        self._last_built = built

    def __iter__(self) -> Iterator[Any]:
        """Yield classes, one at a time; `judged` is to be called before the next is asked for."""
        from repro.census import classes

        by_type: dict[str, list[Any]] = {}
        for model_class in self._found:
            by_type.setdefault(classes.model_type(model_class), []).append(model_class)
        for members in by_type.values():
            known: set[str] = set()
            built, tried = 0, 0
            for model_class in members:
                if built >= _CLASSES_PER_TYPE or tried >= 2 * _CLASSES_PER_TYPE:
                    break
                layers = _layers(model_class)
                if built and not layers - known:
                    continue
                tried += 1
                yield model_class
                if self._last_built:
                    built += 1
                    known |= layers


def _layers(model_class: Any) -> set[str]:
    """Return the classes of a model's parts that checkpoint; empty when the small model cannot be built."""
    from repro.census import shrink, trial

    try:
        model = trial.build(model_class, shrink.LEVELS[0])
    except Exception:  # told as the reason when the class itself is tried
        return set()
    return {type(module).__name__ for module in model.modules() if hasattr(module, "gradient_checkpointing")}


def _private_streams() -> tuple[TextIO, TextIO]:
    """Keep the supervisor's streams: a model that reads gets an end of file, one that prints does no harm."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, events


def _end_with_supervisor() -> None:
    """End this process when its parent has gone, even in the middle of a model."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _bound_memory() -> None:
    limit = int(os.environ.get(MEMORY_VARIABLE, "0"))
    if not limit:
        return
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        # Private writable memory: what a model can eat. The libraries themselves, which are shared, take up the rest.
        # Not honoured everywhere, therefore a second guard.
        private = limit - limit // 8
        resource.setrlimit(resource.RLIMIT_DATA, (private, private))


def _let_torchvision_be_imported() -> None:
    """Declare the operators that torchvision misses where its build is not torch's, as with torch for CPUs only.

    It then refuses to be imported, and with it timm. No model of the census calls them.
    """
    import torch

    declared = torch.library.Library("torchvision", "FRAGMENT")
    while (missing := _missing_operator()) is not None:
        declared.define(f"{missing}(Tensor given) -> Tensor")
    _KEPT.append(declared)


def _missing_operator() -> str | None:
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return None
    except RuntimeError as error:
        said = re.search(r"operator torchvision::(\w+) does not exist", str(error))
        return said.group(1) if said else None
    return None


def _quiet() -> None:
    import warnings

    warnings.simplefilter("ignore")
    sys.setrecursionlimit(1000)


if __name__ == "__main__":
    main()
