"""The child process of `repro.memory.cuda.in_child`: one trial on CUDA, under a cap that ends with it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from repro.memory.cuda import warm_up
from repro.memory.meter import meter


def main() -> None:
    """Read an order from standard input, carry it out, and write the answer to where it says."""
    order = json.load(sys.stdin)
    module, _, function = order["target"].partition(":")
    run = getattr(importlib.import_module(module), function)
    warm_up()
    with meter("cuda", capacity=order["capacity"]) as opened:
        facts = dict(run(opened, **order["arguments"]))
    Path(order["to"]).write_text(json.dumps({**facts, "memory": opened.report.as_facts()}))


if __name__ == "__main__":
    main()
