"""MGDA: the shortest vector in the convex hull of the task gradients."""

import torch
from torch import Tensor

from ._complementarity import complementarity
from ._gram import Solution, Unit, answer, no_bookkeeping, ratios, rounded, unit


def mgda(gram: Tensor) -> Solution:
    """min wᵀGw on the simplex.

    `solved` is False only for what is not a Gram matrix: the weights are on the simplex then, and no more is promised.
    Residual: max_i (wᵀGw − (Gw)_i) / (‖g_i‖ √Σ w_j²G_jj), the optimality gap against the rounding of its terms.
    """
    weights, parts, unsolved = _solve(gram)
    scaled = weights * parts.norms
    products = torch.bmm(parts.exact, scaled)  # (Gw)_i / ‖g_i‖
    value = (scaled * products).sum(-2, keepdim=True)
    gaps = (value * parts.inverse - products) / scaled.norm(dim=-2, keepdim=True)
    residual = torch.where(parts.inverse > 0, gaps, 0.0).amax(-2).nan_to_num(0.0).clamp_min(0.0)
    return answer(gram, weights, residual, ~unsolved)


def mgda_weights(gram: Tensor) -> Tensor:
    """The weights of `mgda`: (…, T, T) in, (…, T) out."""
    return rounded(gram, _solve(gram)[0])


@no_bookkeeping
def _solve(gram: Tensor) -> tuple[Tensor, Unit, Tensor]:
    parts = unit(gram)
    weights, unsolved = min_norm(parts)
    if parts.present is None:
        return weights, parts, unsolved
    # A vanished gradient is the shortest vector itself.
    zero = (parts.present & (parts.norms == 0)).to(weights.dtype)
    count = zero.sum(-2, keepdim=True)
    return torch.where(count > 0, zero / count, weights), parts, unsolved


def min_norm(parts: Unit) -> tuple[Tensor, Tensor]:
    """Min-norm weights over the gradients that are not zero (none: zero), and where the solver did not end.

    For x ≥ 0 the optimality conditions of min ½xᵀCx + ½(rᵀx − 1)², r = smallest norm / norm, are those of a multiple
    of the weights: a complementarity problem, whose x stays below 1/r even where the shortest vector vanishes.
    """
    ratio = ratios(parts)
    x, unsolved = complementarity(torch.addcmul(parts.cosines, ratio, ratio.mT), -ratio)
    weights = x * ratio
    return weights / weights.sum(-2, keepdim=True).clamp_min(1e-300), unsolved
