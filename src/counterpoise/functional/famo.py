"""FAMO: decrease all log-losses at an equal rate, using loss values only."""

import torch
from torch import Tensor

from ._masking import split_absent
from ._step import Step, make_step

OFFSET = 1e-8  # added to L − floor, which keeps the logarithm finite


def famo(logits: Tensor, losses: Tensor, floor: Tensor) -> Step:
    """Compute FAMO's objective Σ z_i log D_i / sg[Σ z_i / D_i] with z = softmax(logits) and D = L − floor + 1e-8.

    Args:
        logits (Tensor): Learned logits, shape (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        floor (Tensor): Lower bounds of the losses, broadcastable to (…, T).

    Returns:
        Step: The objective and the weights, which sum to 1 over the present tasks.

    Example:
        >>> famo(torch.zeros(2), torch.tensor([4.0, 1.0]), torch.zeros(2)).weights
        tensor([0.2000, 0.8000])

    References:
        Liu et al., FAMO: Fast Adaptive Multitask Optimization. https://arxiv.org/abs/2306.03792
    """
    x, present = split_absent(losses)
    z = torch.softmax(logits.to(x.dtype), -1) * present
    d = (x - floor.to(x.dtype) + OFFSET).clamp_min(OFFSET)
    total = (z / d).sum(-1, keepdim=True)
    scale = torch.where(total > 0, total, 1.0)  # avoids 0/0 if no task is present
    return make_step(losses, ((z / scale) * d.log()).sum(-1), z / d / scale)


def famo_gradient(logits: Tensor, before: Tensor, after: Tensor, floor: Tensor) -> Tensor:
    """Compute the gradient of the logits, (∂z/∂logits)ᵀ δ.

    δ = log D − log D′ is the decrease of each log-loss over a step of the optimiser, with D as in :func:`famo`.

    Args:
        logits (Tensor): Learned logits, shape (…, T).
        before (Tensor): Losses before the step, shape (…, T).
        after (Tensor): Losses of the same batch after the step, shape (…, T).
        floor (Tensor): Lower bounds of the losses, broadcastable to (…, T).

    Returns:
        Tensor: Shape (…, T). Tasks that are absent before or after the step are left out and get 0.

    Example:
        >>> famo_gradient(torch.zeros(2), torch.tensor([4.0, 1.0]), torch.tensor([4.0, 0.5]), torch.zeros(2))
        tensor([-0.1733,  0.1733], dtype=torch.float64)

    References:
        Liu et al., FAMO: Fast Adaptive Multitask Optimization. https://arxiv.org/abs/2306.03792
    """
    x, present_before = split_absent(before)
    y, present_after = split_absent(after)
    floor = floor.to(x.dtype)
    d, d_after = ((v - floor + OFFSET).clamp_min(OFFSET) for v in (x, y))
    present = present_before & present_after
    delta = (d.log() - d_after.log()) * present
    z = torch.softmax(logits.to(x.dtype).masked_fill(~present, -torch.inf), -1).nan_to_num(0.0)
    return z * (delta - (z * delta).sum(-1, keepdim=True))
