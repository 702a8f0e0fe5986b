"""One model class of the census: build it small, run it plain and checkpointed, compare every parameter's gradient."""

from __future__ import annotations

import gc
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from repro.census import corrections, drift, inputs, shrink, verdicts
from repro.census.passage import Passage
from repro.observe.spy import EndlessError, Sightings, watching

MAX_PARAMETERS = 150_000_000
"""Above this a model is not run: weights and three sets of gradients have to stay well below the limit of 4 GiB."""

RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Tolerance per element: `RELATIVE` of the largest element of that parameter's plain gradient plus `ABSOLUTE` of the
largest of all. Reentrant recomputation differs by some 3e-7 in fp32, a lost or doubled path by far more."""

_OUT_OF_RESOURCES = re.compile("allocate memory|Resource temporarily unavailable")
"""What torch says when the kernel refuses memory, or a thread: nested backwards start threads without end."""

PREPARING_SECONDS = 10.0
"""Processor time for the guesses at one class; what has not been found by then is not found by more of them."""

Gradients = dict[str, Any]


class NotBuiltError(Exception):
    """No small configuration and no inputs were found with which the plain model trains; the message says why."""


@dataclass(frozen=True)
class Subject:
    """A small model, what to feed it, and its plain gradients."""

    model: Any
    given: inputs.Inputs
    plain: Gradients
    how: Mapping[str, Any]


def observe(model_class: Any, note: Callable[[dict[str, Any]], None]) -> Iterator[dict[str, Any]]:
    """Yield the facts of one class: one set for non-reentrant and one for reentrant checkpointing.

    `note` is called with what is known before a run that may take the process down; the first time when the plain
    model has trained: what ends a process before that says nothing about checkpointing.
    """
    started = time.monotonic()
    try:
        subject = prepare(model_class)
    except (NotBuiltError, MemoryError) as error:
        reason = str(error) if isinstance(error, NotBuiltError) else f"without checkpointing: {_said(error)}"
        for use_reentrant in (False, True):
            yield {"use_reentrant": use_reentrant, "end": verdicts.NOT_BUILT, "reason": reason, "engaged": 0}
        return
    note(dict(subject.how))
    passage = None
    for _ in ("non-reentrant", "reentrant"):
        passage, facts = _checkpointed(subject, passage, note)
        facts["seconds"] = round(time.monotonic() - started, 3)
        started = time.monotonic()
        yield facts


def prepare(model_class: Any) -> Subject:
    """Find a small configuration and inputs with which the plain model trains. Raises NotBuiltError."""
    reasons: list[str] = []
    deadline = time.process_time() + PREPARING_SECONDS
    for level in shrink.LEVELS:
        if time.process_time() > deadline:
            reasons.append(f"{level}: not tried after {PREPARING_SECONDS:g} s of guesses")
            break
        try:
            model = build(model_class, level)
        except Exception as error:  # any constructor may refuse, in its own way
            reasons.append(f"{level}: building: {_said(error)}")
            continue
        for what, given in _seeded_guesses(model, reasons):
            if time.process_time() > deadline:
                break
            try:
                given, plain = _trained(model, given)
            except Exception as error:  # a wrong guess at the inputs
                if isinstance(error, MemoryError) or _OUT_OF_RESOURCES.search(str(error)):
                    raise MemoryError(_said(error)) from error
                reasons.append(f"{level}: {what}: {_said(error)}")
                continue
            how = {"config": level, "inputs": what, "parameters": sum(p.numel() for p in model.parameters())}
            return Subject(model, given, plain, how)
        del model
        gc.collect()
    raise NotBuiltError(" | ".join(dict.fromkeys(reasons))[:3000] or "no inputs to try")


def build(model_class: Any, level: str) -> Any:
    """Build the small model of a class, in training mode, without dropout. Raises ValueError when too large."""
    config = shrink.small_config(model_class.config_class, level)
    if level != "small":
        with torch.device("meta"):
            size = sum(p.numel() for p in drift.build(model_class, config).parameters())
        if size > MAX_PARAMETERS:
            raise ValueError(f"{size:,} parameters are too many")
        config = shrink.small_config(model_class.config_class, level)
    _seed()
    model = drift.build(model_class, config).float().train()
    size = sum(p.numel() for p in model.parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size:,} parameters are too many")
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
        _fill(parameter)
    return model


def _fill(parameter: Any) -> None:
    """Give numbers to a matrix that the model leaves at zero, or at what its memory happened to hold."""
    if parameter.ndim >= 2 and parameter.is_floating_point() and parameter.numel():
        largest = float(parameter.detach().abs().max())
        if not 1e-20 < largest < 1e4:
            torch.nn.init.normal_(parameter, std=0.02)


def gradients(model: Any, given: inputs.Inputs) -> Gradients:
    """Run one seeded forward and backward and return the gradient of each parameter that got one."""
    model.zero_grad(set_to_none=True)
    _seed()
    # Fresh tensors each time: some models write into what they are given.
    fresh = {name: _copied(value) for name, value in given.items()}
    loss = loss_of(model(**fresh))
    loss.backward()
    found = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def loss_of(output: Any) -> Any:
    """Return the model's own loss, or where it has none a fixed weighting of all its outputs. Raises ValueError."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad and bool(torch.isfinite(loss).all()):
        return loss.float().mean()
    total: Any = None
    for tensor in _floats(output):
        # Weights that differ by element: the sum or the square of a normalized output has no gradient worth comparing.
        weights = torch.sin(torch.arange(tensor.numel(), dtype=torch.float32) + 1.0)
        flat = tensor.float().reshape(-1)
        finite = torch.isfinite(flat)
        part = (flat[finite] * weights[finite]).mean()
        total = part if total is None else total + part
    if total is None:
        raise ValueError("no output needs a gradient")
    return total


def compared(plain: Gradients, other: Gradients) -> dict[str, Any]:
    """Compare two sets of gradients element by element, and return facts that a verdict can be made of."""
    scale = max((float(gradient.abs().max()) for gradient in plain.values() if gradient.numel()), default=0.0)
    missing, wrong, not_finite, worst, worst_name = [], 0, 0, 0.0, ""
    for name, expected in plain.items():
        if not expected.numel() or not bool(expected.any()):
            continue
        got = other.get(name)
        if got is None or not bool(got.any()):
            missing.append(name)
            continue
        if not bool(torch.isfinite(got).all()):
            not_finite += 1
            continue
        tolerance = RELATIVE * float(expected.abs().max()) + ABSOLUTE * scale
        ratio = float((got - expected).abs().max()) / tolerance
        wrong += ratio > 1.0
        if ratio > worst:
            worst, worst_name = ratio, name
    extra = [name for name, got in other.items() if name not in plain and bool(got.any())]
    return {
        "parameters": len(plain),
        "missing": len(missing),
        "missing_names": missing[:5],
        "wrong": wrong + len(extra),
        "not_finite": not_finite,
        "worst_ratio": max(worst, 2.0 if extra else 0.0),
        "worst_name": worst_name or (extra[0] if extra else ""),
    }


def _checkpointed(
    subject: Subject, expected: Passage | None, note: Callable[[dict[str, Any]], None]
) -> tuple[Passage, dict[str, Any]]:
    """Run one kind of checkpointing: reentrant when `expected`, what the non-reentrant run saw, is given.

    Where tensors travel past the arguments, the run that passes them by position comes first: it ends, and what it
    proves is noted before the other run takes the process down.
    """
    use_reentrant = expected is not None
    facts: dict[str, Any] = {"use_reentrant": use_reentrant, **subject.how}
    if expected is not None and (expected.travelling or expected.cut_off):
        travels = bool(expected.travelling)
        cure = "by_position" if travels else "with_live_inputs"
        cured = _run(subject, Passage(by_position=travels, with_live_inputs=not travels), use_reentrant=True)
        facts[cure] = verdicts.verdict(cured)
        if facts[cure] != verdicts.EQUAL:
            facts["cure_says"] = verdicts.detail(cured)[:300]
        note({**facts, "engaged": cured["engaged"], **_seen(expected)})
    passage = Passage()
    end = _run(subject, passage, use_reentrant=use_reentrant)
    return passage, {**facts, **_seen(passage), **end}


def _seen(passage: Passage) -> dict[str, Any]:
    return {
        "layers": sorted(passage.layers),
        "travelling": passage.travelling,
        "caches": passage.caches,
        "cut_off": passage.cut_off,
    }


def _run(subject: Subject, passage: Passage, *, use_reentrant: bool) -> dict[str, Any]:
    """Run forward and backward once with checkpointing; `engaged` counts its calls, `took_effect` proves its mode."""
    seen = Sightings()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with watching(passage) as seen:
                drift.enable_checkpointing(subject.model, use_reentrant=use_reentrant)
                found = gradients(subject.model, subject.given)
            end = {"end": "completed", "gradients": compared(subject.plain, found)}
        except Exception as error:  # whatever a model raises is the observation
            end = _raised(error, engaged=seen.calls > 0)
        finally:
            subject.model.zero_grad(set_to_none=True)
            drift.disable_checkpointing(subject.model)
    return {"engaged": seen.calls, "took_effect": _took_effect(seen, use_reentrant=use_reentrant), **end}


def _took_effect(seen: Sightings, *, use_reentrant: bool) -> bool:
    # A layer that is cut off from the graph shows no mode in what it returns.
    mode = "reentrant" if use_reentrant else "non-reentrant"
    return seen.arguments == {str(use_reentrant)} and seen.modes <= {mode, "no gradient"}


def _raised(error: Exception, *, engaged: bool) -> dict[str, Any]:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _OUT_OF_RESOURCES.search(str(error)):
        return {"end": "over its memory limit", "reason": _said(error)}
    if isinstance(error, EndlessError):
        return {"end": "timed out", "reason": f"stopped: {error}"}
    if not engaged and "not compatible with gradient checkpointing" in str(error):
        return {"end": "completed", "reason": _said(error), "gradients": compared({}, {})}
    return {"end": "raised", "exception": {"type": type(error).__name__, "message": str(error)[:1000]}}


def _trained(model: Any, given: inputs.Inputs) -> tuple[inputs.Inputs, Gradients]:
    """Return inputs, corrected by what the model says about them, and the gradients of two equal plain runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given, plain = corrections.settled(model, given, lambda better: gradients(model, better))
        again = gradients(model, given)
    if not any(bool(gradient.any()) for gradient in plain.values()):
        raise ValueError("every gradient is zero")
    if not all(bool(torch.isfinite(gradient).all()) for gradient in plain.values()):
        raise ValueError("a gradient is not finite without checkpointing")
    facts = compared(plain, again)
    if facts["missing"] or facts["wrong"]:
        raise ValueError(f"two runs without checkpointing differ, worst in {facts['worst_name']}")
    return given, plain


def _seeded_guesses(model: Any, reasons: list[str]) -> Iterator[tuple[str, inputs.Inputs]]:
    _seed()
    try:
        yield from inputs.guesses(model)
    except Exception as error:  # a configuration that has a field, but not of the usual meaning
        reasons.append(f"making inputs: {_said(error)}")


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _floats(output: Any, name: str = "") -> Iterator[Any]:
    """Yield the floating-point tensors of an output that need a gradient. Caches stay out: checkpointing drops them."""
    if re.search(r"past|cache|mems|state_dict", name) or "Cache" in type(output).__name__:
        return
    if isinstance(output, torch.Tensor):
        if output.requires_grad and output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from _floats(value, str(key))
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _floats(value)


def _seed() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"
