"""What the kernels of a CUDA device keep, on fake CPU tensors (cell tier).

Fake tensors on a fake CUDA device cannot run everywhere: a torch without CUDA has no attention kernels for it, and ends
the process. So a forecast runs on fake CPU tensors, and the few operators whose memory differs by device are replaced:

* dropout: a CPU keeps a mask of floats, CUDA one of booleans (`native_dropout`);
* attention with dropout: a CPU falls back to the full matrix, the fused CUDA kernels keep a seed;
* mixed precision: on CUDA layer norm, softmax and the losses are computed in float32, on a CPU they are not;
* CTC: replaced on both, because its kernel reads the lengths, which a fake tensor does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

_IN_FLOAT32 = (
    (functional, "layer_norm"),
    (functional, "group_norm"),
    (functional, "softmax"),
    (functional, "log_softmax"),
    (functional, "cross_entropy"),
    (torch, "softmax"),
    (torch, "log_softmax"),
    (torch.Tensor, "softmax"),
    (torch.Tensor, "log_softmax"),
)
"""Functions to which autocast on CUDA gives float32 inputs."""


class _Ctc(torch.autograd.Function):  # type: ignore[misc] # torch is untyped to us
    """What the native CTC kernel allocates: alpha and beta of (batch, frames, 2 x longest target + 1), the gradient."""

    @staticmethod
    def forward(ctx: Any, log_probs: torch.Tensor, longest: int) -> torch.Tensor:
        """Return losses of shape (batch,) for log probabilities of (frames, batch, tokens)."""
        frames, batch = log_probs.shape[:2]
        alpha = log_probs.new_empty((batch, frames, 2 * longest + 1))
        losses = log_probs.new_empty((batch,))
        ctx.save_for_backward(log_probs, alpha, losses)
        return losses

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return an empty gradient of the size of the log probabilities."""
        log_probs, alpha, _ = ctx.saved_tensors
        beta = torch.empty_like(alpha)
        gradient = torch.empty_like(log_probs)
        del beta
        return gradient, None


@contextmanager
def replaced(kernels: str, longest_label: int) -> Iterator[None]:
    """Run with the kernels of `cuda` or `cpu`, for label sequences of at most so many tokens."""
    swaps: list[tuple[Any, str, Any]] = [(functional, "ctc_loss", _ctc_loss(longest_label))]
    if kernels == "cuda":
        swaps += [(place, name, _in_float32(getattr(place, name))) for place, name in _IN_FLOAT32]
        swaps += [
            (functional, "dropout", _dropout),
            (functional, "scaled_dot_product_attention", _attention(functional.scaled_dot_product_attention)),
        ]
    before = [(place, name, getattr(place, name)) for place, name, _ in swaps]
    for place, name, function in swaps:
        setattr(place, name, function)
    try:
        yield
    finally:
        for place, name, function in before:
            setattr(place, name, function)


def _ctc_loss(longest: int) -> Callable[..., torch.Tensor]:
    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,  # noqa: ARG001 - the signature of torch
        input_lengths: Any,  # noqa: ARG001
        target_lengths: Any,  # noqa: ARG001
        blank: int = 0,  # noqa: ARG001
        reduction: str = "mean",
        zero_infinity: bool = False,  # noqa: ARG001
    ) -> torch.Tensor:
        losses = _Ctc.apply(log_probs, longest)
        return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses

    return ctc_loss


def _in_float32(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(tensor: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu") and tensor.is_floating_point():
            tensor = tensor.float()
        return function(tensor, *args, **keywords)

    return call


def _dropout(tensor: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: ARG001
    return torch.native_dropout(tensor, p, True)[0] if training and p > 0 else tensor


def _attention(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG001 - the fused kernels keep a seed, not a mask
        *args: Any,
        **keywords: Any,
    ) -> torch.Tensor:
        return function(query, key, value, attn_mask, 0.0, *args, **keywords)

    return call
