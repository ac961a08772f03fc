"""IMTL-G: the direction that projects equally on every task gradient."""

import torch
from torch import Tensor

from . import host
from .gram import Solution, Unit, answer, answer_dtype, no_bookkeeping, ratios, ridge_of, rounded, unit


def imtl_g(gram: Tensor) -> Solution:
    """Σα = 1 and ⟨g_i, d⟩/‖g_i‖ equal for all i: α ∝ G⁻¹√diag(G), the limit of a vanishing ridge where G is singular.

    Σα of the unnormalised solution, for which all projections are positive, may be negative or vanish for T ≥ 3:
    dividing by it would turn the direction around. Where it is below a millionth of Σ|α| the answer is divided by Σ|α|
    instead, and `solved` is False. A zero gradient gets weight 0. Residual: the spread of the projections, relative to
    √Σ α_j²G_jj.
    """
    weights, parts, scaled, sound = _solve(gram)
    scaled = torch.where(parts.inverse > 0, scaled, 0.0)
    projections = torch.bmm(parts.exact, scaled)
    usable = parts.inverse > 0
    high = torch.where(usable, projections, -torch.inf).amax(-2)
    low = torch.where(usable, projections, torch.inf).amin(-2)
    residual = ((high - low) / scaled.norm(dim=-2)).nan_to_num(0.0, 0.0, 0.0)
    return answer(gram, weights, residual, sound)


def imtl_g_weights(gram: Tensor) -> Tensor:
    """The weights of `imtl_g`: (…, T, T) in, (…, T) out."""
    single = host.imtl_g(gram, ridge_of(gram))
    if single is not None:
        return torch.tensor(single, dtype=answer_dtype(gram))
    return rounded(gram, _solve(gram)[0])


@no_bookkeeping
def _solve(gram: Tensor) -> tuple[Tensor, Unit, Tensor, Tensor]:
    parts = unit(gram)
    scaled = torch.linalg.solve_ex(parts.cosines, torch.ones_like(parts.norms))[0]
    weights = scaled * (parts.inverse if parts.present is None else ratios(parts))
    total, size = weights.sum(-2, keepdim=True), weights.norm(1, -2, keepdim=True)
    sound = total > 1e-6 * size
    return weights / torch.where(sound, total, size), parts, scaled, sound
