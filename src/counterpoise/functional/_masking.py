"""Absent tasks and working precision.

A loss that is not finite marks its task as absent: the batch has no label for it.
"""

import torch
from torch import Tensor


def working_dtype(device: torch.device) -> torch.dtype:
    """Return the precision of the computation: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def output_dtype(values: Tensor) -> torch.dtype:
    """Return the dtype of results for `values`: float32 for half precision, otherwise the dtype of `values`."""
    return torch.promote_types(values.dtype, torch.float32)


def split_absent(losses: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses in working precision, with 1 for absent tasks, and the mask of present tasks.

    The placeholder is 1 because its logarithm is 0.
    """
    losses = losses.detach()
    present = losses.abs() < torch.inf  # fewer kernels than `isfinite`
    return losses.to(working_dtype(losses.device)).nan_to_num(1.0, 1.0, 1.0), present


def masked_mean(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean over present tasks, shape (…, 1); zero if no task is present."""
    count = present.sum(-1, keepdim=True).clamp_min(1)
    return (values * present).sum(-1, keepdim=True) / count


def masked_softmax(logits: Tensor, present: Tensor) -> Tensor:
    """Return the softmax over present tasks; absent tasks get exactly 0."""
    lowest = torch.finfo(logits.dtype).min
    return torch.softmax(torch.where(present, logits, lowest), -1) * present


def clamp_to_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast `values` to `dtype`, clamped to its range: an infinity would spoil an optimiser's running averages."""
    limit = min(torch.finfo(values.dtype).max, torch.finfo(dtype).max)
    return values.clamp(-limit, limit).to(dtype)
