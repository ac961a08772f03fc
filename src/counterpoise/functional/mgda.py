"""MGDA: the shortest vector in the convex hull of the task gradients."""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._complementarity import complementarity
from ._gram import NormalisedGram, Solution, cast_weights, make_solution, norm_ratios, normalise_gram, without_autograd
from ._replay import replay_on_cuda


def mgda(gram: Tensor) -> Solution:
    """Minimise wᵀGw over the simplex.

    The solver is exact: see `docs/numerics.md`.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).

    Returns:
        Solution: The weights, shape (…, T), non-negative with sum 1. If a gradient is zero, it gets all the weight.

        `solved` is False only if `gram` is not positive semi-definite: if its cosines have an eigenvalue below about
        −1e-4 for float32 or −1e-11 for float64 input, which rounding does not explain, or on a device, for more than
        ten tasks, below −1e-6 or −1e-13. The weights are then some point of the simplex. The residual is the optimality
        gap relative to the rounding error of its terms, max_i (wᵀGw − (Gw)_i) / (‖g_i‖ √Σ w_j²G_jj).

    Example:
        >>> mgda(torch.tensor([[1.0, 0.0], [0.0, 4.0]])).weights
        tensor([0.8000, 0.2000])

    References:
        Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization. https://arxiv.org/abs/1810.04650
    """
    weights, parts, unsolved = _solve(gram)
    scaled = weights * parts.norms
    products = torch.bmm(parts.cosines_without_ridge, scaled)  # (Gw)_i / ‖g_i‖
    value = (scaled * products).sum(-2, keepdim=True)
    gaps = (value * parts.inverse - products) / scaled.norm(dim=-2, keepdim=True)
    residual = torch.where(parts.inverse > 0, gaps, 0.0).amax(-2).nan_to_num(0.0).clamp_min(0.0)
    return make_solution(gram, weights, residual, ~unsolved)


@replay_on_cuda
def mgda_weights(gram: Tensor) -> Tensor:
    """Return the weights of :func:`mgda` without residual.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> mgda_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
        tensor([0.8000, 0.2000])

    References:
        Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization. https://arxiv.org/abs/1810.04650
    """
    return cast_weights(gram, _solve(gram)[0])


@without_autograd
def _solve(gram: Tensor) -> tuple[Tensor, NormalisedGram, Tensor]:
    parts = normalise_gram(gram)
    weights, unsolved = min_norm_weights(parts)
    if parts.present is None:
        return weights, parts, unsolved
    # A zero gradient is itself the shortest vector.
    zero = (parts.present & (parts.norms == 0)).to(weights.dtype)
    count = zero.sum(-2, keepdim=True)
    return torch.where(count > 0, zero / count, weights), parts, unsolved


def min_norm_weights(parts: NormalisedGram) -> tuple[Tensor, Tensor]:
    """Return the min-norm weights over the gradients that are not zero, and the mask of unsolved problems.

    The conditions of min ½xᵀCx + ½(rᵀx − 1)² over x ≥ 0, with r = smallest norm / norm, form a complementarity problem
    whose solution is a multiple of the weights. It stays below 1/r even if the shortest vector vanishes.
    """
    ratio = norm_ratios(parts)
    matrix = torch.addcmul(parts.cosines, ratio, ratio.mT)
    x, unsolved = complementarity(matrix, -ratio, rounding=parts.rounding)
    weights = x * ratio
    return weights / weights.sum(-2, keepdim=True).clamp_min(tolerances.TINY), unsolved
