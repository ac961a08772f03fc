"""IMTL-G: the direction whose projections on all task gradients are equal."""

import torch
from torch import Tensor

from . import _scalar_fast_path
from . import _tolerances as tolerances
from ._gram import (
    NormalisedGram,
    Solution,
    cast_weights,
    make_solution,
    norm_ratios,
    normalise_gram,
    rounding_ridge,
    without_autograd,
)
from ._masking import output_dtype
from ._pseudo_inverse import eigenvalue_cut, largest_regular_trace, solve_least_squares
from ._replay import replay_on_cuda


def imtl_g(gram: Tensor) -> Solution:
    """Find weights α with Σα = 1 such that ⟨g_i, d⟩/‖g_i‖ is equal for all tasks, d = Σ α_i g_i.

    The solution is α ∝ G⁻¹√diag(G), that is ‖g_i‖α_i = x_i with Cx = 1 and C the cosines.

    If gradients depend on each other (an eigenvalue of C below 1e-5 for float32 or 1e-12 for float64), usually no
    direction but zero has equal projections. Then x = C⁺1 with the pseudo-inverse, which makes the projections as equal
    as possible in least squares, invariant to scale. If these all but vanish, as for two opposite gradients, d is zero.

    For T ≥ 3 the sum of the unnormalised weights may be negative or vanish; dividing by it would reverse the direction.
    If it is below 1e-6 of Σ|α|, the weights are divided by Σ|α| instead.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).

    Returns:
        Solution: The weights, shape (…, T), which may be negative. A zero gradient gets weight 0.

        `solved` is False where the projections are not equal, because the gradients depend on each other, and where the
        weights were divided by Σ|α|. The residual is the spread of the projections relative to √Σ α_j²G_jj.

    Example:
        >>> imtl_g(torch.tensor([[1.0, 0.0], [0.0, 4.0]])).weights
        tensor([0.6667, 0.3333])

    References:
        Liu et al., Towards Impartial Multi-task Learning. https://openreview.net/forum?id=IMPnRXEWpvr
    """
    weights, parts, scaled, solved = _solve(gram)
    projections = torch.bmm(parts.cosines_without_ridge, scaled)
    usable = parts.inverse > 0
    high = torch.where(usable, projections, -torch.inf).amax(-2)
    low = torch.where(usable, projections, torch.inf).amin(-2)
    residual = ((high - low) / scaled.norm(dim=-2)).nan_to_num(0.0, 0.0, 0.0)
    return make_solution(gram, weights, residual, solved)


@replay_on_cuda
def imtl_g_weights(gram: Tensor) -> Tensor:
    """Return the weights of :func:`imtl_g` without residual.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> imtl_g_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
        tensor([0.6667, 0.3333])

    References:
        Liu et al., Towards Impartial Multi-task Learning. https://openreview.net/forum?id=IMPnRXEWpvr
    """
    ridge = rounding_ridge(gram)
    single = _scalar_fast_path.imtl_g_weights(gram, ridge, largest_regular_trace(eigenvalue_cut(ridge)))
    if single is not None:
        return torch.tensor(single, dtype=output_dtype(gram))
    return cast_weights(gram, _solve(gram)[0])


@without_autograd
def _solve(gram: Tensor) -> tuple[Tensor, NormalisedGram, Tensor, Tensor]:
    """Return the weights, the normalised matrix, x = ‖g‖α up to a factor, and a mask of the solved problems."""
    parts = normalise_gram(gram)
    ones = torch.ones_like(parts.norms) if parts.present is None else (parts.inverse > 0).to(parts.norms.dtype)
    scaled, reached = solve_least_squares(parts.cosines, ones, eigenvalue_cut(parts.ridge), ridge=parts.ridge)
    equal = None
    if reached is not ones:
        share = (ones * reached).sum(-2, keepdim=True) / ones.sum(-2, keepdim=True).clamp_min(1.0)
        # If C⁺1 is negligible, combine the gradients to zero.
        scaled = torch.where(share > tolerances.VANISHED_SHARE, scaled, ones - reached)
        equal = (share > 1 - tolerances.EQUAL_SHARE) | (share <= tolerances.VANISHED_SHARE)
    weights = scaled * (parts.inverse if parts.present is None else norm_ratios(parts))
    total, size = weights.sum(-2, keepdim=True), weights.norm(1, -2, keepdim=True)
    positive = total > tolerances.WEIGHT_SUM * size
    weights = weights / torch.where(positive, total, size)
    return weights, parts, scaled, positive if equal is None else positive & equal
