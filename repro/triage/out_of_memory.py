"""Out of memory: on the device or the host, in training or in evaluation, told from message and frames alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from repro.triage.tracebacks import Frame, Raised, Report

_DEVICE = re.compile(r"\b(CUDA|HIP|XPU|MPS|NPU|MUSA|HPU|MLU)\b[^\n]{0,60}out of memory", re.IGNORECASE)
_DEVICE_TYPES = ("OutOfMemoryError",)
_DEVICE_WORDS = (
    "Tried to allocate",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA_ERROR_OUT_OF_MEMORY",
)
_HOST_WORDS = (
    "DefaultCPUAllocator",
    "alloc_cpu.cpp",
    "std::bad_alloc",
    "Cannot allocate memory",
    "Unable to allocate",
    "unable to mmap",
)
_HOST_TYPES = ("MemoryError", "_ArrayMemoryError")
_KILLED = re.compile(
    r"^Killed$|\boom[-_]kill|\bOOMKilled\b|Out of memory: Killed process"
    r"|\(exitcode: -9\)|\bexit(?:ed with)? code:? ?(?:-9|137)\b|\bSIGKILL\b|killed by signal: Killed"
)

_SIZE = r"([\d.]{1,20}) ?(bytes|[KMGT]i?B)\b"
_WANTED = re.compile(rf"(?:[Tt]ried to allocate|Unable to allocate) {_SIZE}")
_CAPACITY = re.compile(rf"(?:capac?i?ty of|max allowed:) {_SIZE}|{_SIZE} total capacity")
_UNITS = {"bytes": 1} | {f"{u}{i}B": (1024 if i else 1000) ** (n + 1) for n, u in enumerate("KMGT") for i in ("i", "")}

# Innermost first; the first that a traceback passes says what the program was doing. A name alone may be anything in
# other people's code, so that each is asked for in the file of the library where it lies.
_PHASES: tuple[tuple[str, str, str, str], ...] = (
    (
        "transformers/trainer_pt_utils.py",
        "nested_numpify",
        "evaluation",
        "moving what evaluation collected to the host",
    ),
    (
        "transformers/trainer_pt_utils.py",
        "to_cpu_and_numpy",
        "evaluation",
        "moving what evaluation collected to the host",
    ),
    ("transformers/trainer_pt_utils.py", "nested_concat", "evaluation", "concatenating what evaluation collected"),
    (
        "transformers/trainer_pt_utils.py",
        "torch_pad_and_concatenate",
        "evaluation",
        "concatenating what evaluation collected",
    ),
    (
        "transformers/trainer_pt_utils.py",
        "numpy_pad_and_concatenate",
        "evaluation",
        "concatenating what evaluation collected",
    ),
    ("accelerate/utils/operations.py", "pad_across_processes", "evaluation", "padding across processes"),
    ("accelerate/utils/operations.py", "gather", "evaluation", "gathering across processes"),
    ("", "compute_metrics", "evaluation", "computing metrics"),
    ("", "preprocess_logits_for_metrics", "evaluation", "preprocessing logits for metrics"),
    ("transformers/generation/utils.py", "generate", "evaluation", "generating"),
    ("transformers/", "prediction_step", "evaluation", "the forward pass of an evaluation step"),
    ("transformers/", "evaluation_loop", "evaluation", "the evaluation loop"),
    ("transformers/", "prediction_loop", "evaluation", "the evaluation loop"),
    ("transformers/", "predict", "evaluation", "predicting"),
    ("transformers/", "evaluate", "evaluation", "evaluating"),
    ("torch/_tensor.py", "backward", "training", "the backward pass of a training step"),
    ("accelerate/accelerator.py", "backward", "training", "the backward pass of a training step"),
    ("torch/optim/", "step", "training", "the optimizer's step"),
    ("accelerate/optimizer.py", "step", "training", "the optimizer's step"),
    ("transformers/", "compute_loss", "training", "the forward pass of a training step"),
    ("transformers/", "training_step", "training", "a training step"),
    ("torch/nn/modules/module.py", "to", "loading", "moving the model to the device"),
    ("torch/nn/modules/module.py", "cuda", "loading", "moving the model to the device"),
    ("transformers/modeling_utils.py", "from_pretrained", "loading", "loading the model"),
    ("torch/serialization.py", "load", "loading", "loading a checkpoint"),
    ("transformers/", "_inner_training_loop", "training", "the training loop"),
    ("transformers/", "train", "training", "training"),
)


@dataclass(frozen=True)
class OutOfMemory:
    """What a text says about memory that ran out.

    `device` is `device` (a GPU or its like), `host`, or empty where the text does not say; `phase` is `training`,
    `evaluation`, `loading`, or empty where no frame tells. `from_callback`: the evaluation was started by a callback.
    Sizes are in bytes, None where the text has none.
    """

    device: str
    phase: str
    doing: str
    from_callback: bool
    wanted_bytes: int | None
    capacity_bytes: int | None
    because: str


def find(report: Report) -> OutOfMemory | None:
    """Return what is known of the last exception that says memory ran out, or None when none does."""
    for raised in reversed(report.raised):
        device = _where(raised)
        if device:
            return _explained(raised, device)
    suspects = (line for line in reversed(report.lines) if "ill" in line or "-9" in line or "137" in line)
    killed = next((line.strip() for line in suspects if _KILLED.search(line)), None)
    if killed is None:
        return None
    because = f"the system killed the process ({killed[:80]}), which is what it does when the host's memory is full"
    return OutOfMemory("host", "", "", False, None, None, because)


def _where(raised: Raised) -> str:
    if raised.name in _HOST_TYPES or any(word in raised.message for word in _HOST_WORDS):
        return "host"
    if (
        raised.name in _DEVICE_TYPES
        or _DEVICE.search(raised.message)
        or any(w in raised.message for w in _DEVICE_WORDS)
    ):
        return "device"
    return ""


def _explained(raised: Raised, device: str) -> OutOfMemory:
    phase, doing, witness = _phase(raised.frames)
    from_callback = phase == "evaluation" and passes_callback(raised.frames)
    because = f"{raised.type or 'the message'} says the {device}'s memory ran out"
    if witness:
        because += f", and the traceback passes {witness.function} in {witness.path.rpartition('/')[2]}"
    if from_callback:
        because += ", which a callback started"
    wanted, capacity = _bytes(_WANTED, raised.message), _bytes(_CAPACITY, raised.message)
    return OutOfMemory(device, phase, doing, from_callback, wanted, capacity, because)


def _phase(frames: Sequence[Frame]) -> tuple[str, str, Frame | None]:
    for part, function, phase, doing in _PHASES:
        for frame in reversed(frames):
            if frame.function == function and part in frame.path:
                return phase, doing, frame
    return "", "", None


def passes_callback(frames: Sequence[Frame]) -> bool:
    """Tell whether an evaluation was started within a callback: `evaluate` inside `call_event`."""
    names = [frame.function for frame in frames]
    if "call_event" not in names:
        return False
    return any(name in ("evaluate", "predict", "evaluation_loop") for name in names[names.index("call_event") :])


def _bytes(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        return None
