"""The losses that a balancer with `memory=True` remembers of absent tasks."""

import torch
from torch import Tensor

from ..functional._floats import FLOOR
from ..functional._outliers import limit_outliers

DECAY = 0.9  # of the running mean of each task's losses


def recall(losses: Tensor, recent: Tensor, learning: bool) -> Tensor:
    """Return the losses with the running means of absent tasks; in a training step, update the means first."""
    present = torch.isfinite(losses)
    if learning:
        current = losses.to(recent.dtype)
        limited = limit_outliers(current, recent, 1 - DECAY, least_mean=FLOOR)
        moved = torch.where(torch.isnan(recent), current, torch.lerp(limited, recent, DECAY))
        recent.copy_(torch.where(present, moved, recent))
    return torch.where(present, losses, recent.to(losses.dtype))
