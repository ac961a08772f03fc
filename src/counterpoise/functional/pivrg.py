"""PIVRG: FairGrad with weights that grow with the performance drop of each task."""

import math

import torch
from torch import Tensor

from ._masking import masked_softmax, working_dtype
from .nash import fairgrad_weights


def pivrg_preference(drops: Tensor, *, bound: float = 2.0, min_temperature: float = 10.0) -> Tensor:
    """Compute T·softmax(Δ/τ) of the performance drops Δ, with τ = max((max Δ − min Δ)/log b, τ_min).

    The temperature τ keeps the ratio of the largest to the smallest value at or below the bound b.

    Args:
        drops (Tensor): Performance drop of each task relative to a single-task baseline, in percent, shape (…, T).
            Larger is worse. NaN means unknown and gets the value 1.
        bound (float, optional): Bound b of the ratio, greater than 1. Default: 2.0.
        min_temperature (float, optional): Smallest temperature τ_min, positive. Default: 10.0.

    Returns:
        Tensor: Shape (…, T), positive, with mean 1; float64 (float32 on MPS).

    Example:
        >>> pivrg_preference(torch.tensor([0.0, 30.0]))
        tensor([0.6667, 1.3333], dtype=torch.float64)

    References:
        Qin et al., Revisiting Fairness in Multitask Learning: A Performance-Driven Approach for Variance Reduction.
        https://openaccess.thecvf.com/content/CVPR2025/html/Qin_Revisiting_Fairness_in_Multitask_Learning_A_Performance-Driven_Approach_for_Variance_CVPR_2025_paper.html
    """
    if bound <= 1 or min_temperature <= 0:
        raise ValueError(
            f"bound must exceed 1 and min_temperature 0, got bound={bound} and min_temperature={min_temperature}"
        )
    known = drops.isfinite()
    values = torch.where(known, drops.detach(), 0.0).to(working_dtype(drops.device))
    high = torch.where(known, values, -torch.inf).amax(-1, keepdim=True)
    low = torch.where(known, values, torch.inf).amin(-1, keepdim=True)
    temperature = ((high - low) / math.log(bound)).clamp_min(min_temperature)
    softmax = masked_softmax((values - high) / temperature, known)
    return torch.where(known, known.sum(-1, keepdim=True) * softmax, 1.0)


def pivrg_weights(
    gram: Tensor,
    drops: Tensor,
    *,
    bound: float = 2.0,
    min_temperature: float = 10.0,
    preference: Tensor | None = None,
) -> Tensor:
    """Solve Gw = √(p/w) with p = T·softmax(Δ/τ) of the performance drops Δ.

    This is :func:`fairgrad_weights` with α = 2 and the preference p: tasks that lag further behind their single-task
    baseline get more weight, which reduces the variance of the performance across tasks.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        drops (Tensor): Performance drop of each task in percent, shape (…, T): see :func:`pivrg_preference`. Zeros
            before the first evaluation.
        bound (float, optional): Bound of the ratio of the largest to the smallest p. Default: 2.0.
        min_temperature (float, optional): Smallest temperature of the softmax. Default: 10.0.
        preference (Tensor, optional): Importance of each task, which multiplies p, broadcastable to (…, T).
            Default: None.

    Returns:
        Tensor: The weights, shape (…, T). A zero gradient gets weight 0.

    Example:
        >>> pivrg_weights(torch.tensor([[1.0, 0.0], [0.0, 8.0]]), torch.zeros(2))
        tensor([1.0000, 0.2500])

    References:
        Qin et al., Revisiting Fairness in Multitask Learning: A Performance-Driven Approach for Variance Reduction.
        https://openaccess.thecvf.com/content/CVPR2025/html/Qin_Revisiting_Fairness_in_Multitask_Learning_A_Performance-Driven_Approach_for_Variance_CVPR_2025_paper.html
    """
    absent = ~gram.diagonal(dim1=-2, dim2=-1).isfinite()
    p = pivrg_preference(torch.where(absent, torch.nan, drops), bound=bound, min_temperature=min_temperature)
    return fairgrad_weights(gram, alpha=2.0, preference=p if preference is None else p * preference.to(p))
