"""Absent tasks in pure tensor operations: a loss that is not finite is a task without a label in this batch."""

import torch
from torch import Tensor


def working_dtype(device: torch.device) -> torch.dtype:
    """The precision of the mathematics: T numbers cost no more in float64, and exp(log L) then keeps its digits."""
    return torch.float32 if device.type == "mps" else torch.float64


def split_absent(losses: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the losses in working precision with 1 (log 0) where a task is absent, and the mask of those present."""
    present = torch.isfinite(losses)
    return torch.where(present, losses.detach(), 1.0).to(working_dtype(losses.device)), present


def masked_mean(values: Tensor, present: Tensor) -> Tensor:
    """The mean over present tasks, shape (…, 1); zero where none is present."""
    count = present.sum(-1, keepdim=True).clamp_min(1)
    return (values * present).sum(-1, keepdim=True) / count


def masked_softmax(logits: Tensor, present: Tensor) -> Tensor:
    """A softmax over present tasks: absent ones get exactly 0, and so do all where none is present."""
    lowest = torch.finfo(logits.dtype).min
    return torch.softmax(torch.where(present, logits, lowest), -1) * present


def result_dtype(losses: Tensor) -> torch.dtype:
    """Half precision losses are answered in float32, wider ones in their own precision."""
    return torch.promote_types(losses.dtype, torch.float32)
