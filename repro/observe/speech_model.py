"""Trials of a bare speech encoder with its head: one forward and one backward, compared with the plain twin."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from repro.observe import fresh, gradients, raised
from repro.observe.speech_setup import encoder_layers, model_for, settings_proof
from repro.observe.spy import Sightings, watching
from repro.speech import encoders
from repro.vocabulary import Configuration, Facts

NO_INPUT_NEEDS_A_GRADIENT = "None of the inputs have requires_grad=True"

_TWINS: gradients.Twins[tuple[float, gradients.Gradients]] = gradients.Twins()


def twin_of(configuration: Configuration) -> Configuration:
    """Return the same configuration without checkpointing, and without what only checkpointing needs."""
    plain: dict[str, str] = {"checkpointing": "off", "use_reentrant": "unset"}
    if "inputs" in configuration:
        plain["inputs"] = "untouched"
    if configuration.get("lora", "off") != "off":
        plain["lora"] = "before"
    return configuration.but(**plain)


def told_apart(model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the gradients that are more than rounding.

    The bias of a key adds the same to all scores of a query, which softmax ignores: its gradient is zero by nature.
    """
    return {name: grad for name, grad in gradients.of(model).items() if not name.endswith("k_proj.bias")}


def observe(family: str, configuration: Configuration) -> Facts:
    """Run one configuration and return its facts: end, loss, gradients against the twin, proofs of the settings.

    `warned` tells whether torch said that no input of a checkpoint needs a gradient.
    """
    fresh.start()
    facts: dict[str, Any] = {"end": "completed"}
    model: Any = None
    loss = math.nan
    with watching() as seen, noting_the_warning(facts):
        try:
            model = model_for(family, configuration)
            loss = _forward_backward(family, model)
        except raised.UnobservableError:
            raise
        except Exception as error:
            facts.update(end="refused" if raised.is_refusal(error) else "raised", exception=raised.as_facts(error))
    facts["proofs"] = {**seen.as_facts(), **(settings_proof(model) if model is not None else {})}
    if facts["end"] != "completed":
        return facts
    twin = twin_of(configuration)
    twin_loss, twin_gradients = _TWINS.get((family, twin), lambda: _run_twin(family, twin))
    facts["losses"], facts["twin_losses"] = [loss], [twin_loss]
    facts["loss_finite"] = math.isfinite(loss)
    facts["gradients"] = gradients.compare(told_apart(model), twin_gradients, "fp32")
    return facts


@contextmanager
def noting_the_warning(facts: dict[str, Any]) -> Iterator[None]:
    """Note in the facts whether torch's warning about inputs without gradients came up inside the block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            facts["warned"] = any(NO_INPUT_NEEDS_A_GRADIENT in str(warning.message) for warning in caught)


def _run_twin(family: str, configuration: Configuration) -> tuple[float, gradients.Gradients]:
    fresh.start()
    model = model_for(family, configuration)
    loss = _forward_backward(family, model)
    return loss, told_apart(model)


def _forward_backward(family: str, model: Any) -> float:
    loss = model(**encoders.batch(family)).loss
    loss.backward()
    return float(loss.detach())


def _seen_in_forward(family: str, **levels: str | int) -> Sightings:
    fresh.start()
    plain: dict[str, str | int] = {"checkpointing": "method", "use_reentrant": "unset", "layers": 1}
    with watching() as seen:
        model = model_for(family, Configuration({**plain, **levels}))
        model(**encoders.batch(family))
    return seen


def probe(family: str) -> dict[str, Any]:
    """Look at how this release checkpoints a family, and return the mechanism that triggers are stated in.

    `in_release`: whether it has the family at all. `default_mode`: what `gradient_checkpointing_enable()` without
    arguments leads to. `live_keywords`: the names under which tensors with a gradient reach a checkpointed layer by
    keyword. Only forward passes are run, so that a backward without an end cannot begin.
    """
    try:
        default = _seen_in_forward(family)
    except raised.UnobservableError:
        return {"in_release": False, "default_mode": None, "live_keywords": []}
    by_keyword = _seen_in_forward(family, use_reentrant="False", layers=2)
    return {
        "in_release": True,
        "default_mode": "reentrant" if "reentrant" in default.modes else "non-reentrant",
        "live_keywords": sorted(by_keyword.live_keywords),
    }


def cut_off(family: str, **levels: str | int) -> int | None:
    """Return how many checkpointed calls of one forward get no input that needs a gradient; None without the family.

    The forward is not reentrant: that changes nothing about the first such call, and hides none.
    """
    try:
        seen = _seen_in_forward(family, use_reentrant="False", **levels)
    except raised.UnobservableError:
        return None
    return seen.calls - max(seen.live_positional.values(), default=0)


def first_layer_is_live(family: str, **levels: str | int) -> bool | str | None:
    """Tell whether the encoder's first layer gets an input that needs a gradient.

    None where this cell lacks what the levels ask for; the type of the error where setting up raises one.
    """
    plain: dict[str, str | int] = {"checkpointing": "method", "use_reentrant": "False", "head": "trainable"}
    fresh.start()
    try:
        model = model_for(family, Configuration({**plain, **levels}))
    except raised.UnobservableError:
        return None
    except NotImplementedError as error:
        return type(error).__name__
    live: list[bool] = []

    def look(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        live.append(bool(inputs) and bool(inputs[0].requires_grad))

    layers = encoder_layers(model)
    layers[0].register_forward_pre_hook(look)
    model(**encoders.batch(family))
    return any(live)
