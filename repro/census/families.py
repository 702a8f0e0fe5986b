"""Which model families the installed transformers has, found from its files: nothing of it is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from functools import lru_cache
from pathlib import Path

# Directories that hold no model of their own.
_NOT_FAMILIES = {"auto", "deprecated"}
# The word audio appears in them, but their training input is not speech.
_NOT_SPEECH = {"auto", "perceiver", "cosmos3_omni"}
_CHECKPOINTING = re.compile(r"gradient_checkpointing|GradientCheckpointingLayer")
_SPEECH = re.compile(r"audio|speech", re.IGNORECASE)
_SPEECH_MENTIONS = 3
"""Mentions of audio or speech from which a modeling file counts as speech; text and image models have none or one."""


def models_directory() -> Path:
    """Return the directory of model families. Raises LookupError when transformers is not installed."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        raise LookupError("transformers is not installed in this environment")
    return Path(found.submodule_search_locations[0]) / "models"


def transformers_version() -> str:
    """Return the version of the installed transformers."""
    return importlib.metadata.version("transformers")


@lru_cache(maxsize=1)
def all_families() -> tuple[str, ...]:
    """Return every family whose modeling code mentions gradient checkpointing, by name."""
    found = {path.parent.name for path in modeling_files("*") if _CHECKPOINTING.search(_text(path))}
    return tuple(sorted(found - _NOT_FAMILIES))


@lru_cache(maxsize=1)
def speech_families() -> tuple[str, ...]:
    """Return the families among `all_families` that take in or give out speech or other sound."""
    return tuple(name for name in all_families() if name not in _NOT_SPEECH and _is_speech(name))


def modeling_files(family: str) -> list[Path]:
    """Return the PyTorch modeling files of a family (`*` for all), in the order of their names."""
    return sorted(
        path
        for path in models_directory().glob(f"{family}/modeling_*.py")
        if not path.name.startswith(("modeling_tf_", "modeling_flax_"))
    )


def _is_speech(family: str) -> bool:
    directory = models_directory() / family
    if any("SequenceFeatureExtractor" in _text(path) for path in directory.glob("feature_extraction_*.py")):
        return True
    return sum(len(_SPEECH.findall(_text(path))) for path in modeling_files(family)) >= _SPEECH_MENTIONS


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
