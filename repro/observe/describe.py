"""What this environment is, without importing torch: run as `python -m repro.observe.describe` it prints JSON."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

MATTERS = (
    "accelerate",
    "datasets",
    "huggingface-hub",
    "jiwer",
    "numpy",
    "peft",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)
"""Packages whose version may change an outcome. Test tools are not among them: they may be newer than the cell."""


def describe() -> dict[str, Any]:
    """Return the cell of this environment: `cell` (its id), versions of what matters, and all that is installed."""
    resolved = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in distributions() if d.metadata["Name"]}
    device = "cuda" if Path("/proc/driver/nvidia").exists() and "+cpu" not in resolved.get("torch", "") else "cpu"
    python = platform.python_version()
    what = {"python": python, "device": device, **{name: resolved.get(name) for name in MATTERS}}
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "cell": f"transformers-{resolved.get('transformers')}-torch-{resolved.get('torch')}-{device}-{digest}",
        "transformers": resolved.get("transformers"),
        "torch": resolved.get("torch"),
        "python": python,
        "device": device,
        "platform": f"{platform.system()}-{platform.machine()}",
        "resolved": dict(sorted(resolved.items())),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
