"""What a forecast is asked for: the settings of a run that its memory depends on. No torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

Precision = Literal["fp32", "fp16", "bf16", "bf16-weights"]
Attention = Literal["sdpa", "eager"]
Checkpointing = Literal["off", "on", "reentrant"]
Optimizer = Literal["adamw_torch_fused", "adamw_torch", "adamw_torch_single", "sgd"]
Keep = Literal["outputs", "argmax", "nothing", "batch"]
Kernels = Literal["cuda", "cpu"]

_CHOICES: dict[str, Any] = {
    "precision": Precision,
    "attention": Attention,
    "checkpointing": Checkpointing,
    "optimizer": Optimizer,
    "keep": Keep,
    "kernels": Kernels,
}


@dataclass(frozen=True)
class Setting:
    """The settings of a run. Raises ValueError for one that makes no sense.

    * `batch`, `eval_batch` (0: the same as `batch`): examples per device. `accumulation`: batches per optimizer step.
    * `seconds`: length of a clip (Whisper pads to 30 whatever it is). `labels`: tokens of a label sequence.
    * `precision`: `fp16` and `bf16` are mixed precision as the Trainer's arguments of that name give it;
      `bf16-weights` is a model loaded in bfloat16.
    * `checkpointing`: `on` is without reentrance.
    * `optimizer`: as the Trainer names them; `adamw_torch` works on lists of tensors on CUDA, `adamw_torch_single` is
      the same one parameter at a time, as on a CPU.
    * `examples`: size of the evaluation set. `keep`: what evaluation keeps of it: every `outputs` (compute_metrics is
      given), their `argmax` (preprocess_logits_for_metrics), `nothing` (no compute_metrics, or
      prediction_loss_only), or nothing beyond a `batch` (batch_eval_metrics). `eval_accumulation` is
      `eval_accumulation_steps`, 0 for unset. `concatenate` is `eval_do_concat_batches`.
    * `generate`: tokens that evaluation generates per example (predict_with_generate), 0 for none.
    * `freeze_encoder`: no gradients for the encoder (Whisper, Moonshine) or the feature encoder (the others).
    * `kernels`: count what the kernels of a `cuda` device keep, or those of a `cpu`, as when checking against a meter.
    """

    batch: int = 8
    eval_batch: int = 0
    accumulation: int = 1
    seconds: float = 15.0
    labels: int = 128
    precision: Precision = "fp32"
    attention: Attention = "sdpa"
    checkpointing: Checkpointing = "off"
    optimizer: Optimizer = "adamw_torch_fused"
    examples: int = 1000
    keep: Keep = "outputs"
    eval_accumulation: int = 0
    concatenate: bool = True
    generate: int = 0
    freeze_encoder: bool = False
    kernels: Kernels = "cuda"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in get_args(choices):
                raise ValueError(f"{name} is {value!r}; it can be: {', '.join(get_args(choices))}")
        for name, least in (("batch", 1), ("accumulation", 1), ("labels", 1), ("examples", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("eval_batch", "eval_accumulation", "generate"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it cannot be negative")
        if not 0.05 <= self.seconds <= 3600:
            raise ValueError(f"seconds is {self.seconds}; a clip has from 0.05 to 3600")

    @property
    def evaluation_batch(self) -> int:
        """Examples per evaluation batch."""
        return self.eval_batch or self.batch

    def but(self, **changes: Any) -> Setting:
        """Return the same setting with some fields changed."""
        return dataclasses.replace(self, **changes)
