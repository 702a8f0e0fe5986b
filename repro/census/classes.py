"""The model classes of one family that support gradient checkpointing, and which of them are worth running."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from repro.census.families import modeling_files


def modules_of(family: str) -> list[ModuleType]:
    """Import a family's modeling modules. A name with a dot is a module of its own, which tests use."""
    if "." in family:
        return [importlib.import_module(family)]
    return [importlib.import_module(f"transformers.models.{family}.{path.stem}") for path in modeling_files(family)]


def supporting(modules: list[ModuleType]) -> list[Any]:
    """Return the concrete model classes defined in these modules that say they support gradient checkpointing."""
    import transformers

    base: Any = transformers.PreTrainedModel
    found = (
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__
    )
    return [model_class for model_class in dict.fromkeys(found) if _is_concrete(model_class, base)]


def _is_concrete(model_class: Any, base: Any) -> bool:
    return bool(
        model_class.supports_gradient_checkpointing
        and not model_class.__name__.endswith(("PreTrainedModel", "PretrainedModel"))
        and getattr(model_class, "config_class", None) is not None
        and model_class.forward is not base.forward
    )


def by_preference(classes: list[Any]) -> list[Any]:
    """Order classes so that those which train end to end come first, and parts of models last."""
    heads = ("ForConditionalGeneration", "ForCausalLM", "ForSeq2Seq", "ForCTC", "ForMaskedLM", "ForImageClassification",
             "LMHeadModel", "ForSequenceClassification")  # fmt: skip

    def rank(model_class: Any) -> int:
        name = model_class.__name__
        for index, head in enumerate(heads):
            if name.endswith(head):
                return index
        return len(heads) + (0 if "For" in name else 1 if name.endswith("Model") else 2)

    return sorted(classes, key=rank)


def model_type(model_class: Any) -> str:
    """Return the model type of a class, which is what a user knows a model by."""
    return str(getattr(model_class.config_class, "model_type", "") or model_class.__name__)
