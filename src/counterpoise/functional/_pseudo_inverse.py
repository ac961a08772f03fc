"""Pseudo-inverse of the cosines of task gradients, without an eigendecomposition, which would wait for the device."""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import can_sync, identity
from ._linear_systems import smallest_eigenvalue, solve


def eigenvalue_cut(ridge: float) -> float:
    """Return the eigenvalue of the cosines below which gradients count as dependent."""
    return tolerances.DEPENDENT_RIDGES * min(ridge, tolerances.DEPENDENT_RIDGE_LIMIT)


def largest_regular_trace(cut: float) -> float:
    """Return the trace of the inverse, the sum of the reciprocal eigenvalues, below which none is near the cut."""
    return tolerances.REGULAR_MARGIN / cut


def solve_least_squares(cosines: Tensor, right: Tensor, cut: float, *, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return x = C⁺p and Cx for cosines C (B, T, T) and a column p (B, T, 1).

    Eigenvalues of C below the cut count as zero; `ridge` is what the diagonal of `cosines` has been increased by. Cx is
    p itself, the same tensor, if no matrix of the batch has such an eigenvalue, and otherwise the projection of p on
    the range of C.
    """
    eye = identity(cosines)
    if can_sync(cosines):
        columns = solve(cosines, torch.cat((right, eye.expand_as(cosines)), -1))
        diagonal = columns[..., 1:].diagonal(dim1=-2, dim2=-1)
        if bool(((diagonal.amin(-1) > 0) & (diagonal.sum(-1) < largest_regular_trace(cut))).all()):
            return columns[..., :1], right
    null = null_space_projection(cosines - ridge * eye if ridge else cosines, cut)
    reached = right - torch.bmm(null, right)
    x = solve(cosines + null, reached)
    return x - torch.bmm(null, x), reached


def null_space_projection(cosines: Tensor, cut: float) -> Tensor:
    """Return the projection on the eigenvectors of the cosines (B, T, T) whose eigenvalues are below `cut`.

    McWeeny's purification turns τ(C + τ)⁻¹ into that projection without an eigendecomposition, which would wait for a
    device: see `docs/numerics.md`. It diverges for eigenvalues below −τ/5, so that on the CPU such a matrix gets a
    larger τ. Eigenvalues that small are caused by rounding, and so are positive ones of that size.
    """
    eye = identity(cosines)
    tau: Tensor | float = cut
    if can_sync(cosines):
        tau = (-tolerances.PURIFICATION_MARGIN * smallest_eigenvalue(cosines)).clamp_min(cut)
    null = solve(cosines + tau * eye, (tau * eye).expand_as(cosines))
    for _ in range(tolerances.PURIFICATIONS):
        square = torch.bmm(null, null)
        null = torch.baddbmm(square, square, null, beta=3.0, alpha=-2.0)
    return null
