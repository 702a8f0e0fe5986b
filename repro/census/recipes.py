"""What single model families need beyond the generic rules, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CONFIGS: Mapping[str, Mapping[str, Any]] = {}
"""By configuration class: constructor arguments laid over the generic ones (nested for sub-configurations)."""

BASES: Mapping[str, Callable[..., Any]] = {}
"""By configuration class: how to build it where its constructor needs sub-configurations."""
