"""FAMO: decrease all log-losses at an equal rate, from loss values alone."""

import torch
from torch import Tensor

from ._masking import split_absent
from ._step import Step, finish

OFFSET = 1e-8


def famo(logits: Tensor, losses: Tensor, floor: Tensor) -> Step:
    """Σ z_i log D_i / sg(Σ z_i / D_i) with z = softmax(logits) and D = L − floor + 1e-8 (positive by definition)."""
    x, present = split_absent(losses)
    z = torch.softmax(logits.to(x.dtype), -1) * present
    d = (x - floor.to(x.dtype) + OFFSET).clamp_min(OFFSET)
    total = (z / d).sum(-1, keepdim=True)
    scale = torch.where(total > 0, total, 1.0)  # no task present: 0/1, not 0/0
    return finish(losses, ((z / scale) * d.log()).sum(-1), z / d / scale)


def famo_gradient(logits: Tensor, before: Tensor, after: Tensor, floor: Tensor) -> Tensor:
    """(∂z/∂logits)ᵀ δ with δ = log D − log D′, the decrease of each log-loss over the optimiser's step.

    Among the tasks that were there before and after; 0 for the others.
    """
    x, present_before = split_absent(before)
    y, present_after = split_absent(after)
    floor = floor.to(x.dtype)
    d, d_after = ((v - floor + OFFSET).clamp_min(OFFSET) for v in (x, y))
    there = present_before & present_after
    delta = (d.log() - d_after.log()) * there
    z = torch.softmax(logits.to(x.dtype).masked_fill(~there, -torch.inf), -1).nan_to_num(0.0)
    return z * (delta - (z * delta).sum(-1, keepdim=True))
