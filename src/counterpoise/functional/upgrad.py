"""UPGrad: each task gradient projected on the dual cone, then averaged."""

import torch
from torch import Tensor

from ._complementarity import complementarity
from ._gram import Solution, Unit, answer, mean_weights, no_bookkeeping, rounded, unit


def upgrad(gram: Tensor) -> Solution:
    """The mean of the projections of the g_i on {d : ⟨g_j, d⟩ ≥ 0 for all j}.

    The projection of g_i is g_i + Σ x_j g_j with x ≥ 0, ⟨g_j, d⟩ ≥ 0 and one of the two zero for each j. `solved` is
    False only for what is not a Gram matrix: the weights are finite and not negative then, and no more is promised.
    Residual: the worst negative product ⟨g_j, d_i⟩ / (‖g_j‖‖g_i‖), or product with x_j, over all projections.
    """
    weights, parts, x, unsolved = _solve(gram)
    cosines = parts.exact
    products = torch.baddbmm(cosines, cosines, x)
    residual = (-products).clamp_min(0.0).maximum((x * products).abs()).amax((-1, -2))
    return answer(gram, weights, residual, ~unsolved.any(-1))


def upgrad_weights(gram: Tensor) -> Tensor:
    """The weights of `upgrad`: (…, T, T) in, (…, T) out."""
    return rounded(gram, _solve(gram)[0])


@no_bookkeeping
def _solve(gram: Tensor) -> tuple[Tensor, Unit, Tensor, Tensor]:
    parts = unit(gram)
    x, unsolved = complementarity(parts.cosines, parts.cosines)
    # Column i of x is in units of ‖g_i‖ / ‖g_j‖.
    moved = torch.bmm(x, parts.norms) * parts.inverse
    if parts.present is None:
        return (moved + 1) / parts.norms.shape[-2], parts, x, unsolved
    mean = mean_weights(parts)
    return (moved + 1) * mean, parts, x, unsolved
