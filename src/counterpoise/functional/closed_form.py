"""Loss-space rules with closed-form weights: functions of the losses alone, without learned parameters."""

from math import isfinite

import torch
from torch import Tensor

from . import _floats
from ._floats import FLOOR
from ._masking import masked_mean, masked_softmax, output_dtype, split_absent, working_dtype
from ._step import Step, make_step, reads_floats, step_from_floats


def weighted_sum(weights: Tensor, losses: Tensor) -> Step:
    """Compute Σ sg[w_i] L_i over the present tasks.

    Args:
        weights (Tensor): Task weights, broadcastable to (…, T).
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.

    Returns:
        Step: The objective and the weights; absent tasks have weight 0.

    Example:
        >>> weighted_sum(torch.tensor([0.5, 2.0]), torch.tensor([4.0, 1.0])).objective
        tensor(4.)
    """
    if reads_floats(losses) and weights.shape == losses.shape:
        values = losses.tolist()
        if isfinite(sum(values)):
            return step_from_floats(_floats.weighted_sum(weights.tolist(), values), losses.dtype)
    x, present = split_absent(losses)
    weights = weights.detach().to(x.dtype) * present
    return make_step(losses, (weights * x).sum(-1), weights)


def unweighted_sum(losses: Tensor) -> Step:
    """Compute Σ L_i over the present tasks, as :func:`weighted_sum` with weights of 1, in fewer operations."""
    if reads_floats(losses):
        return weighted_sum(torch.ones_like(losses), losses)
    losses = losses.detach()
    dtype = output_dtype(losses)
    finite = losses.to(working_dtype(losses.device)).nan_to_num(0.0, 0.0, 0.0)
    return Step(finite.sum(-1).to(dtype), (losses.abs() < torch.inf).to(dtype))


def uw_o(losses: Tensor, scales: Tensor | None = None, *, normalise: bool = False) -> Step:
    """Weight each loss by 1/sg[L_i], the optimum of Kendall's objective (UW-O).

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        scales (Tensor, optional): Positive numbers to use instead of the losses, shape (…, T). Default: None.
        normalise (bool, optional): Whether the weights sum to 1. Default: False.

    Returns:
        Step: The objective and the weights.

    Example:
        >>> uw_o(torch.tensor([4.0, 1.0])).weights
        tensor([0.2500, 1.0000])

    References:
        Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning.
        https://arxiv.org/abs/2408.07985
    """
    x, present = split_absent(losses)
    scales = x if scales is None else scales.detach().to(x.dtype)
    weights = present / scales.clamp_min(FLOOR)
    if normalise:
        # The softmax of logarithms does not overflow if one loss vanishes.
        weights = masked_softmax(-scales.clamp_min(FLOOR).log(), present)
    return weighted_sum(weights, losses)


def uw_so(losses: Tensor, *, temperature: float = 2.0) -> Step:
    """Weight the losses by softmax((1/sg[L]) / temperature) (UW-SO).

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        temperature (float, optional): Temperature of the softmax. Default: 2.0.

    Returns:
        Step: The objective and the weights.

    Example:
        >>> uw_so(torch.tensor([4.0, 1.0])).weights
        tensor([0.4073, 0.5927])

    References:
        Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning.
        https://arxiv.org/abs/2408.07985
    """
    x, present = split_absent(losses)
    return weighted_sum(masked_softmax(x.clamp_min(FLOOR).reciprocal() / temperature, present), losses)


def geometric_mean(losses: Tensor) -> Step:
    """Compute the geometric mean (Π L_i)^{1/T} over the present tasks.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.

    Returns:
        Step: The objective, which is 0 if no task is present, and the weights.

    Example:
        >>> geometric_mean(torch.tensor([4.0, 1.0])).objective
        tensor(2.)

    References:
        Chennupati et al., MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy for Multi-Task
        Learning. https://arxiv.org/abs/1904.08492
    """
    x, present = split_absent(losses)
    x = x.clamp_min(FLOOR)
    mean = masked_mean(x.log(), present).exp() * present.any(-1, keepdim=True)
    count = present.sum(-1, keepdim=True).clamp_min(1)
    return make_step(losses, mean.squeeze(-1), mean * present / (count * x))


def log_sum(losses: Tensor) -> Step:
    """Compute Σ log L_i over the present tasks, the scale-free warm-up objective of STCH.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.

    Returns:
        Step: The objective and the weights 1/L_i.

    Example:
        >>> log_sum(torch.tensor([4.0, 1.0])).weights
        tensor([0.2500, 1.0000])

    References:
        Lin et al., Smooth Tchebycheff Scalarization for Multi-Objective Optimization. https://arxiv.org/abs/2402.19078
    """
    x, present = split_absent(losses)
    x = x.clamp_min(FLOOR)
    return make_step(losses, (x.log() * present).sum(-1), present / x)


def stch(losses: Tensor, nadir: Tensor, *, mu: float = 1.0) -> Step:
    """Compute the smooth Tchebycheff objective μ log Σ exp(ℓ_i/μ) with ℓ_i = log(L_i/nadir_i).

    It is a smooth maximum of the relative log-losses.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        nadir (Tensor): Reference losses, shape (…, T).
        mu (float, optional): Smoothing μ; the objective approaches the maximum as μ approaches 0. Default: 1.0.

    Returns:
        Step: The objective, which is 0 if no task is present, and the weights softmax(ℓ/μ)_i / L_i.

    Example:
        >>> stch(torch.tensor([4.0, 1.0]), torch.tensor([4.0, 1.0])).weights
        tensor([0.1250, 0.5000])

    References:
        Lin et al., Smooth Tchebycheff Scalarization for Multi-Objective Optimization. https://arxiv.org/abs/2402.19078
    """
    x, present = split_absent(losses)
    x = x.clamp_min(FLOOR)
    exponents = (x / nadir.to(x.dtype).clamp_min(FLOOR)).log() / mu
    soft_maximum = torch.where(present, exponents, torch.finfo(x.dtype).min).logsumexp(-1) * mu
    objective = torch.where(present.any(-1), soft_maximum, 0.0)
    return make_step(losses, objective, masked_softmax(exponents, present) / x)
