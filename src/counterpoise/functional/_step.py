"""What every loss-space rule returns."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._masking import result_dtype


class Step(NamedTuple):
    """One loss-space step for losses of shape (…, T), all of it detached.

    A rule states its own derivatives, so that a step is one node of the autograd graph whatever the method:
    `weights` is ∂objective/∂L, `gradient` is what the rule's learned coordinates receive (None where it has none).
    """

    objective: Tensor  # (…)
    weights: Tensor  # (…, T)
    gradient: Tensor | None = None  # (…, T)


def finish(losses: Tensor, objective: Tensor, weights: Tensor, gradient: Tensor | None = None) -> Step:
    """Rounds a step from working precision to the precision in which `losses` are answered."""
    dtype = result_dtype(losses)
    if gradient is not None:
        # Past the range of the answer a gradient still has a sign: infinity would poison the optimiser's averages.
        limit = torch.finfo(dtype).max
        gradient = gradient.clamp(-limit, limit).to(dtype)
    return Step(objective.to(dtype), weights.to(dtype), gradient)
