"""What differs between releases of torch, as far as metering is concerned."""

from __future__ import annotations

import torch

OutOfMemoryError: type[RuntimeError] = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
"""The exception of a full device: `torch.OutOfMemoryError` since 2.5, `torch.cuda.OutOfMemoryError` before."""
