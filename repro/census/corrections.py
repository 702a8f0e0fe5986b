"""What a model says about inputs that it does not take, turned into better ones."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from repro.census import inputs

AT_MOST = 6
"""Corrections of one guess, one after the other; what is not right then is not going to be."""

_NOT_ASKED_FOR = re.compile(
    r"^labels$|past_key_values|^use_cache$|^return_dict$|^output_|^self$|^(decoder_)?inputs_embeds$"
)

Correction = Callable[[Any, inputs.Inputs, Exception], inputs.Inputs | None]


def settled(model: Any, given: inputs.Inputs, run: Callable[[inputs.Inputs], Any]) -> tuple[inputs.Inputs, Any]:
    """Return inputs with which a run of the model succeeds, starting from a guess, and what it returned.

    Raises what the run raised, once that tells nothing more about the inputs.
    """
    for _ in range(AT_MOST):
        try:
            return given, run(given)
        except Exception as error:
            better = corrected(model, given, error)
            if better is None:
                raise
        given = better
    return given, run(given)


def corrected(model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Return inputs that no longer offend in the way that an error tells; None where it tells nothing of use."""
    for correction in (
        _placeholders,
        _without_cache,
        _asked_for,
        _dimensions,
        _picture_size,
        _channels,
        _width,
        _missing_in_the_line,
    ):
        better = correction(model, given, error)
        if better is not None:
            return better
    return None


def _placeholders(model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Put as many placeholder tokens into `input_ids` as the model says that it has features for."""
    message = str(error)
    asked = re.search(r"(image|audio|video|speech)\D*tokens\D*(\d+)\D*features\D*(\d+)", message, re.IGNORECASE)
    if asked is None or "input_ids" not in given:
        return None
    kind, features = asked.group(1).lower(), int(asked.group(3))
    token = inputs.find(model.config, *(f"{kind}_{suffix}" for suffix in ("token_id", "token_index")))
    text = given["input_ids"]
    if token is None or text.ndim != 2 or features % len(text) or features > 4096 or int(token) in text:
        return None
    rows = features // len(text)
    placeholders = torch.full((len(text), rows), int(token))
    ids = torch.cat([text[:, :2], placeholders, text[:, 2:]], dim=1)
    masks = {name: torch.ones_like(ids) for name in ("attention_mask",) if name in given}
    return {**given, "input_ids": ids, **masks, **({"labels": ids.clone()} if "labels" in given else {})}


def _without_cache(model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Do without a cache, where a model made one that it cannot use."""
    if "use_cache" in given or "use_cache" not in _parameters(model):
        return None
    return {**given, "use_cache": False} if re.search(r"\bCache\b|cache|get_seq_length", str(error)) else None


def _dimensions(_model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Put what lacks one dimension in front of the others into a batch of one."""
    asked = re.search(r"not enough values to unpack \(expected (\d+), got (\d+)\)", str(error))
    if asked is None or int(asked.group(1)) != int(asked.group(2)) + 1:
        return None
    return _replaced(given, lambda shape: (1, *shape) if len(shape) == int(asked.group(2)) else shape)


def _asked_for(model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Add the arguments of the forward that the message names."""
    words = set(re.findall(r"\w+", str(error)))
    return _with(model, given, [name for name in _parameters(model) if name in words])


def _missing_in_the_line(model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Add the arguments of the forward that are None in the line that could not be run."""
    if not isinstance(error, (AttributeError, TypeError)) or "None" not in str(error):
        return None
    parameters = _parameters(model)
    for line, local in reversed(list(_frames(error.__traceback__))):
        nothing = [n for n in re.findall(r"\w+", line) if n in parameters and local.get(n, 0) is None]
        better = _with(model, given, nothing)
        if better is not None:
            return better
    return None


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, dict[str, Any]]]:
    while traceback is not None:
        frame = traceback.tb_frame
        yield linecache.getline(frame.f_code.co_filename, traceback.tb_lineno), frame.f_locals
        traceback = traceback.tb_next


def _with(model: Any, given: inputs.Inputs, names: list[str]) -> inputs.Inputs | None:
    found = {}
    for name in names:
        value = None if name in given or _NOT_ASKED_FOR.search(name) else inputs.value(name, model.config, given)
        if value is not None:
            found[name] = value
    return {**given, **found} if found else None


def _picture_size(_model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    message = str(error)
    both = re.search(r"image size \((\d+)\s*\*\s*(\d+)\) doesn't match model \((\d+)\s*\*\s*(\d+)\)", message)
    one = re.search(r"(?:height|width|size) \((\d+)\) doesn't match model \((\d+)\)", message)
    if both is not None:
        was, wanted = tuple(map(int, both.groups()[:2])), tuple(map(int, both.groups()[2:]))
    elif one is not None:
        was, wanted = (int(one.group(1)),) * 2, (int(one.group(2)),) * 2
    else:
        return None
    return _replaced(given, lambda shape: (*shape[:-2], *wanted) if tuple(shape[-2:]) == was else shape)


def _channels(_model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Give a convolution the channels that it wants. What had none at all is taken for one example by torch."""
    asked = re.search(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels", str(error))
    if asked is None:
        return None
    was, wanted = tuple(int(number) for number in asked.group(1).split(",")), int(asked.group(2))

    def shape_of(shape: tuple[int, ...]) -> tuple[int, ...]:
        if shape == was:
            return (was[0], wanted, *was[2:])
        return (shape[0], wanted, *shape[1:]) if (1, *shape) == was else shape

    return _replaced(given, shape_of)


def _width(_model: Any, given: inputs.Inputs, error: Exception) -> inputs.Inputs | None:
    """Give a linear layer vectors as wide as it wants; a picture becomes as many patches as it had rows."""
    asked = re.search(r"shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x\d+\)", str(error))
    if asked is None:
        return None
    was, wanted = int(asked.group(2)), int(asked.group(3))
    return _replaced(given, lambda shape: (shape[0], 16, wanted) if len(shape) > 3 and shape[-1] == was
                     else (*shape[:-1], wanted) if len(shape) > 1 and shape[-1] == was else shape)  # fmt: skip


def _replaced(given: inputs.Inputs, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> inputs.Inputs | None:
    changed = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            shape = tuple(shape_of(tuple(value.shape)))
            if shape != tuple(value.shape):
                changed[name] = torch.randn(*shape, requires_grad=value.requires_grad)
    return {**given, **changed} if changed else None


def _parameters(model: Any) -> list[str]:
    return [name for name in inspect.signature(model.forward).parameters if name != "kwargs"]
