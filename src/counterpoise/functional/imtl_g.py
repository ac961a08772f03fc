"""IMTL-G: the direction that projects equally on every task gradient."""

import torch
from torch import Tensor

from . import _small_gram
from ._gram import (
    Solution,
    Unit,
    answer,
    answer_dtype,
    identity,
    looking_is_free,
    no_bookkeeping,
    ratios,
    ridge_of,
    rounded,
    unit,
)

PURIFICATIONS = 4


def imtl_g(gram: Tensor) -> Solution:
    """Σα = 1 and ⟨g_i, d⟩/‖g_i‖ equal for all i: α ∝ G⁻¹√diag(G), that is ‖g_i‖α_i = x_i with Cx = 1, C the cosines.

    Where gradients depend on each other (an eigenvalue of C below 1e-5, or 1e-12 in float64), often no direction but
    zero projects equally on all. There x = C⁺1, the pseudo-inverse: projections as equal as can be, in least squares,
    whatever the scales; and `solved` is False. If even these all but vanish, as for two opposite gradients, d is zero.

    Σα of the unnormalised solution may be negative or vanish for T ≥ 3: dividing by it would turn the direction around.
    Where it is below a millionth of Σ|α| the answer is divided by Σ|α| instead, and `solved` is False, too. A zero
    gradient gets weight 0. Residual: the spread of the projections, relative to √Σ α_j²G_jj.
    """
    weights, parts, scaled, sound = _solve(gram)
    projections = torch.bmm(parts.exact, scaled)
    usable = parts.inverse > 0
    high = torch.where(usable, projections, -torch.inf).amax(-2)
    low = torch.where(usable, projections, torch.inf).amin(-2)
    residual = ((high - low) / scaled.norm(dim=-2)).nan_to_num(0.0, 0.0, 0.0)
    return answer(gram, weights, residual, sound)


def imtl_g_weights(gram: Tensor) -> Tensor:
    """The weights of `imtl_g`: (…, T, T) in, (…, T) out."""
    ridge = ridge_of(gram)
    single = _small_gram.imtl_g(gram, ridge, 0.1 / _cut(ridge))
    if single is not None:
        return torch.tensor(single, dtype=answer_dtype(gram))
    return rounded(gram, _solve(gram)[0])


@no_bookkeeping
def _solve(gram: Tensor) -> tuple[Tensor, Unit, Tensor, Tensor]:
    parts = unit(gram)
    ones = torch.ones_like(parts.norms) if parts.present is None else (parts.inverse > 0).to(parts.norms.dtype)
    right = torch.cat((ones, identity(parts.cosines).expand_as(parts.cosines)), -1)
    solved = torch.linalg.solve_ex(parts.cosines, right)[0]
    scaled, inverse = solved[..., :1], solved[..., 1:]
    equal = None
    if not (looking_is_free(gram) and _are_regular(inverse, 0.1 / _cut(parts.ridge))):
        scaled, equal = _least_squares(parts, ones, scaled)
    weights = scaled * (parts.inverse if parts.present is None else ratios(parts))
    total, size = weights.sum(-2, keepdim=True), weights.norm(1, -2, keepdim=True)
    sound = total > 1e-6 * size
    weights = weights / torch.where(sound, total, size)
    return weights, parts, scaled, sound if equal is None else sound & equal


def _cut(ridge: float) -> float:
    """Eigenvalues of the cosines below this count as zero. Half precision has a ridge beyond any eigenvalue."""
    return 10 * min(ridge, 1e-4)


def _are_regular(inverse: Tensor, largest: float) -> bool:
    """Whether no eigenvalue is near the cut: the trace of the inverse is the sum of their reciprocals."""
    trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
    return bool(((trace > 0) & (trace < largest)).all())


def _least_squares(parts: Unit, ones: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor]:
    """x = C⁺1, and whether it is C⁻¹1; `scaled`, for which d vanishes, where next to nothing is left of it.

    τ(C + τ)⁻¹ is 1 where C vanishes, and nearly 0 elsewhere: McWeeny's purification makes it the projection on what C
    does not reach. An eigendecomposition would do the same, but wait for the device.
    """
    eye = identity(parts.cosines)
    tau = _cut(parts.ridge)
    lost = torch.linalg.solve_ex(parts.exact + tau * eye, (tau * eye).expand_as(parts.cosines))[0]
    for _ in range(PURIFICATIONS):
        square = torch.bmm(lost, lost)
        lost = torch.baddbmm(square, square, lost, beta=3.0, alpha=-2.0)
    kept = eye - lost
    reached = torch.bmm(kept, ones)
    x = torch.bmm(kept, torch.linalg.solve_ex(parts.cosines, reached)[0])
    share = (ones * reached).sum(-2, keepdim=True) / ones.sum(-2, keepdim=True).clamp_min(1.0)
    return torch.where(share > 1e-4, x, scaled), (share > 1 - 1e-6) | (share <= 1e-4)
