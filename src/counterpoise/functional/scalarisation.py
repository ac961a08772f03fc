"""Preference-conditioned scalarisations: COSMOS and penalty-based boundary intersection (PBI)."""

import torch
from torch import Tensor

from ._floats import FLOOR
from ._masking import clamp_to_dtype, output_dtype, split_absent
from ._step import Step, make_step

DISTANCE_SMOOTHING = 1e-12  # added to the squared distance from the ray, where the gradient of the norm is undefined
DISTANCE_ROUNDING = 1e-14  # distance from the ray, relative to the norm of the losses, that rounding explains


def cosmos(losses: Tensor, preference: Tensor, *, penalty: float = 1.0) -> Step:
    """Compute Σ p_i L_i − λ cos(p, L): a weighted sum that rewards losses in proportion to the preference.

    A weight is negative where a loss is so small that increasing it aligns the losses with the preference.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        preference (Tensor): Preference vector p, broadcastable to (…, T). Its entries are not negative.
        penalty (float, optional): Factor λ of the cosine. The paper uses 0.01 to 8, depending on the data.
            Default: 1.0.

    Returns:
        Step: The objective and its derivative with respect to each loss. The norm of the losses is at least 1e-8 in the
        cosine.

    Example:
        >>> step = cosmos(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0]))
        >>> step.objective, step.weights
        (tensor(6.0101), tensor([0.9774, 1.0170]))

    References:
        Ruchte and Grabocka, Scalable Pareto Front Approximation for Deep Multi-Objective Learning.
        https://arxiv.org/abs/2103.13392
    """
    x, present = split_absent(losses)
    x = x * present
    p = preference.detach().to(x.dtype) * present
    norm = x.square().sum(-1, keepdim=True).sqrt()
    unit = x / norm.clamp_min(FLOOR)
    direction = p / p.square().sum(-1, keepdim=True).sqrt().clamp_min(FLOOR)
    cosine = (direction * unit).sum(-1, keepdim=True)
    # Below its lower bound the norm is a constant, and the second term of the derivative is absent.
    slope = (direction - cosine * unit * (norm > FLOOR)) / norm.clamp_min(FLOOR)
    objective = (p * x).sum(-1) - penalty * cosine.squeeze(-1)
    return _clamped_step(losses, objective, p - penalty * slope)


def pbi(losses: Tensor, preference: Tensor, *, theta: float = 5.0, reference: Tensor | None = None) -> Step:
    """Compute d₁ + θ d₂, where d₁ is the length of L − z along the preference ray and d₂ its distance from the ray.

    With the unit vector ŵ of the preference, d₁ = ŵ·(L − z) and d₂ = ‖L − z − d₁ ŵ‖.

    Args:
        losses (Tensor): Losses, shape (…, T). A loss that is not finite marks an absent task.
        preference (Tensor): Preference vector, broadcastable to (…, T). Its entries are not negative.
        theta (float, optional): Factor θ of the distance from the ray. Default: 5.0.
        reference (Tensor, optional): Ideal point z, a lower bound of the losses, broadcastable to (…, T). None is the
            origin. Default: None.

    Returns:
        Step: The objective and its derivative with respect to each loss. 1e-12 is added to d₂² under the root, so that
        the derivative is finite on the ray. The objective is 0 if no task is present.

    Example:
        >>> step = pbi(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0]))
        >>> step.objective, step.weights
        (tensor(23.), tensor([1., 5.]))

    References:
        Zhang and Li, MOEA/D: A Multiobjective Evolutionary Algorithm Based on Decomposition.
        https://doi.org/10.1109/TEVC.2007.892759
    """
    x, present = split_absent(losses)
    if reference is not None:
        x = x - reference.detach().to(x.dtype)
    x = torch.where(present, x, 0.0)
    direction = preference.detach().to(x.dtype) * present
    direction = direction / direction.square().sum(-1, keepdim=True).sqrt().clamp_min(FLOOR)
    along = (direction * x).sum(-1, keepdim=True)
    off = x - along * direction
    square = off.square().sum(-1, keepdim=True)
    on_ray = square <= DISTANCE_ROUNDING**2 * x.square().sum(-1, keepdim=True)
    off = torch.where(on_ray, 0.0, off)
    distance = (torch.where(on_ray, 0.0, square) + DISTANCE_SMOOTHING).sqrt()
    objective = (along + theta * distance).squeeze(-1) * present.any(-1)
    return _clamped_step(losses, objective, direction + theta * off / distance)


def _clamped_step(losses: Tensor, objective: Tensor, weights: Tensor) -> Step:
    """Build the step with objective and weights within the range of the output dtype."""
    dtype = output_dtype(losses)
    return make_step(losses, clamp_to_dtype(objective, dtype), clamp_to_dtype(weights, dtype))
