"""ConFIG: a direction whose cosines with all task gradients are equal."""

from operator import mul

import torch
from torch import Tensor

from ._gram import (
    NormalisedGram,
    cast_weights,
    expand_preference,
    normalise_gram,
    preference_shares,
    rounding_ridge,
    without_autograd,
)
from ._masking import output_dtype, working_dtype
from ._pseudo_inverse import eigenvalue_cut, solve_least_squares
from ._replay import replay_on_cuda
from ._small_matrices import LEAST_PIVOT_RIDGES, invert_factor, normalise_small, read_vector, solve_factored

VANISHED_SHARE = 1e-8  # share of p in the range of the cosines below which rounding explains it


@replay_on_cuda
def config_weights(gram: Tensor, *, preference: Tensor | None = None) -> Tensor:
    """Compute the weights of d = (Σ_i ⟨g_i, u⟩) u with u the unit vector along U⁺p.

    U holds the unit gradients as rows, so the cosines of d with the task gradients are in the ratio of the preference
    p. The length of d is the sum of the projections of all gradients on it. With the cosines C = UUᵀ, U⁺p = Uᵀx and
    x = C⁺p.

    If gradients depend on each other (an eigenvalue of C below 1e-5 for float32 or 1e-12 for float64), the cosines
    approximate that ratio in least squares. If U⁺p vanishes, as for opposite gradients, so does d. Two gradients with
    equal preference have the closed form w_i = (‖g₁‖ + ‖g₂‖) / 2‖g_i‖, the same as :func:`dcgd_weights`.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        preference (Tensor, optional): Importance p of each task, not negative, broadcastable to (…, T). Only ratios
            matter. Default: None, which is 1 for each task.

    Returns:
        Tensor: The weights, shape (…, T), which may be negative. A zero gradient gets weight 0.

    Example:
        >>> config_weights(torch.tensor([[1.0, 0.0], [0.0, 9.0]]))
        tensor([2.0000, 0.6667])

    References:
        Liu et al., ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks.
        https://arxiv.org/abs/2408.11104
    """
    single = _solve_small(gram, preference)
    if single is not None:
        return torch.tensor(single, dtype=output_dtype(gram))
    return cast_weights(gram, _solve(gram, preference))


def mconfig_weights(gram: Tensor, steps: Tensor, *, beta: float = 0.9, preference: Tensor | None = None) -> Tensor:
    """Compute the weights of :func:`config_weights` for momenta m_i, applied to m_i / (1 − β^n_i).

    M-ConFIG computes the gradient of one loss in each step, m_i ← βm_i + (1 − β)g_i, and combines the momenta of all.
    Division by 1 − β^n_i corrects the bias of a momentum after n_i steps.

    Args:
        gram (Tensor): Gram matrices of the momenta m, shape (…, T, T).
        steps (Tensor): Number n of steps in which each momentum was updated, shape (…, T). A task without any is
            absent; the authors' code returns zero until every task has one.
        beta (float, optional): Decay β of the momenta, in [0, 1). Default: 0.9.
        preference (Tensor, optional): As in :func:`config_weights`. Default: None.

    Returns:
        Tensor: The weights of the momenta m, including the correction, shape (…, T).

    Example:
        >>> mconfig_weights(torch.tensor([[0.01, 0.0], [0.0, 0.09]]), torch.tensor([1, 1]))
        tensor([20.0000,  6.6667])

    References:
        Liu et al., ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks.
        https://arxiv.org/abs/2408.11104
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta}")
    dtype = working_dtype(gram.device)
    correction = (1 - beta ** steps.to(dtype)).reciprocal()
    correction = torch.where(steps > 0, correction, torch.nan)
    corrected = gram.detach().to(dtype) * correction.unsqueeze(-1) * correction.unsqueeze(-2)
    weights = config_weights(corrected.to(output_dtype(gram)), preference=preference)
    return torch.where(steps > 0, weights * correction, 0.0).to(weights.dtype)


def mconfig_update(
    direction: Tensor,
    momentum: Tensor,
    square: Tensor,
    step: int | Tensor,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide the direction of M-ConFIG by the root of a running mean of squares, as Adam does.

    The mean square is that of the gradients to which Adam would have assigned this direction: with the momentum
    m = (1 − β₁^n)d and the previous one m', the gradient (m − β₁m') / (1 − β₁). For one task the result is Adam's.

    Args:
        direction (Tensor): Direction d for one parameter, of any shape.
        momentum (Tensor): Momentum m' of the last step, of the same shape; zeros in the first step.
        square (Tensor): Running mean of squares, of the same shape; zeros in the first step.
        step (int or Tensor): Number n of this step, from 1.
        betas (tuple of float, optional): Decays β₁ of the momentum and β₂ of the squares. Default: (0.9, 0.999).
        eps (float, optional): Constant added to the root. Default: 1e-8.

    Returns:
        tuple[Tensor, Tensor, Tensor]: The update, the new momentum and the new mean of squares.

    Example:
        >>> update, momentum, square = mconfig_update(torch.tensor([3.0]), torch.zeros(1), torch.zeros(1), 1)
        >>> update
        tensor([1.0000])

    References:
        Liu et al., ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks.
        https://arxiv.org/abs/2408.11104
    """
    first, second = betas
    new = direction.detach() * (1 - first**step)
    gradient = (new - first * momentum) / (1 - first)
    square = torch.lerp(gradient * gradient, square, second)
    return direction.detach() / ((square / (1 - second**step)).sqrt() + eps), new, square


@without_autograd
def _solve(gram: Tensor, preference: Tensor | None) -> Tensor:
    parts = normalise_gram(gram, add_ridge=False)
    if preference is None and gram.shape[-1] == 2:
        return bisector_weights(parts)
    ones = torch.ones_like(parts.norms)
    target = ones if preference is None else preference_shares(parts, expand_preference(gram, preference))
    if parts.present is not None:
        target = target * (parts.inverse > 0)
    x, reached = solve_least_squares(parts.cosines, target, eigenvalue_cut(parts.ridge))
    squared_length = (reached * x).sum(-2, keepdim=True)
    weights = x * parts.inverse * ((reached * parts.norms).sum(-2, keepdim=True) / squared_length)
    if reached is target and parts.present is None:
        return weights
    share = (reached * target).sum(-2, keepdim=True)
    vanished = share <= VANISHED_SHARE * (target * target).sum(-2, keepdim=True)
    return torch.where(vanished | ~(squared_length > 0), 0.0, weights)


def _solve_small(gram: Tensor, preference: Tensor | None) -> list[float] | None:
    """Return the weights for a single small matrix whose gradients are clearly independent."""
    parts = normalise_small(gram)
    if parts is None:
        return None
    cosines, norms = parts
    if preference is None and len(norms) == 2:
        return [sum(norms) / (2 * n) for n in norms]
    p = [1.0] * len(norms) if preference is None else read_vector(preference, len(norms))
    if p is None or min(p) < 0 or sum(p) == 0:
        return None
    inverse = invert_factor(cosines, LEAST_PIVOT_RIDGES * rounding_ridge(gram))
    if inverse is None:
        return None
    x = solve_factored(inverse, p)
    factor = sum(map(mul, p, norms)) / sum(map(mul, p, x))
    return [factor * value / n for value, n in zip(x, norms, strict=True)]


def bisector_weights(parts: NormalisedGram) -> Tensor:
    """Return the weights for two gradients with equal preference, (B, 2, 1). A zero gradient gets weight 0."""
    total = parts.norms.sum(-2, keepdim=True)
    if parts.present is None:
        return total * parts.inverse / 2
    return total * parts.inverse / (parts.inverse > 0).sum(-2, keepdim=True).clamp_min(1)
