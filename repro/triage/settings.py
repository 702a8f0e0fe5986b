"""Arguments that a text sets: `gradient_checkpointing=True` in code, in a configuration, on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMES = frozenset(
    """
    activation_checkpointing activation_checkpointing_kwargs attn_implementation auto_find_batch_size
    batch_eval_metrics bf16 deepspeed eval_accumulation_steps eval_do_concat_batches eval_on_start eval_steps
    eval_strategy evaluation_strategy fp16 fsdp generation_max_length gradient_accumulation_steps
    gradient_checkpointing gradient_checkpointing_kwargs load_best_model_at_end optim per_device_eval_batch_size
    per_device_train_batch_size predict_with_generate prediction_loss_only torch_compile torch_empty_cache_steps
    use_cache use_cpu use_reentrant
    """.split()  # noqa: SIM905 - a list of words reads best as words
)
"""Arguments that decide about the known kinds of failures; others are of no interest here."""

MOST = 200
"""Settings kept of one text."""

_SETTING = re.compile(
    r"(?<![\w.])(?:--|[\w.]{1,80}\.)?(?P<name>[a-z][a-z0-9_\-]{3,40})[\"']?(?:\s{0,4}[=:]\s{0,4}|\s{1,4})"
    r"(?P<value>[\"']?[\w.\-]{1,60}[\"']?)",
    re.ASCII,
)
_CALL = re.compile(r"\b((?:gradient|activation)_checkpointing_enable)\(", re.ASCII)
_ENCODER = re.compile(r"\bfreeze_encoder\(", re.ASCII)


def find(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each known argument that the lines set, in order, every different one once.

    Comments are no settings. A message that recommends an argument is none either: hand over the lines without it.
    """
    found: dict[str, list[str]] = {}
    kept = 0
    for line in lines:
        if "=" not in line and ":" not in line and "--" not in line and "_enable(" not in line and "freeze" not in line:
            continue
        code = line.partition("#")[0]
        for name, value in _in(code):
            values = found.setdefault(name, [])
            if value not in values and kept < MOST:
                values.append(value)
                kept += 1
    return {name: tuple(values) for name, values in found.items() if values}


def _in(code: str) -> Iterable[tuple[str, str]]:
    for match in _SETTING.finditer(code):
        name = match["name"].replace("-", "_").rstrip("_")
        if name in NAMES:
            yield name, match["value"].strip("\"'")
    for match in _CALL.finditer(code):
        yield match[1] + "()", "called"
    if _ENCODER.search(code) and "def " not in code:
        yield "freeze_encoder()", "called"
