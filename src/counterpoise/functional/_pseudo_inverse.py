"""Pseudo-inverse of the cosines of task gradients, without an eigendecomposition, which would wait for the device."""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import NormalisedGram, can_sync, identity


def solve_least_squares(parts: NormalisedGram, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return x = C⁺p and Cx for the cosines C (B, T, T) and a column p (B, T, 1).

    Eigenvalues of C below 1e-5 for float32 or 1e-12 for float64 input count as zero. Cx is p itself where no
    eigenvalue is that small, and otherwise the projection of p on the range of C. C must be free of a ridge.
    """
    cosines, eye = parts.cosines, identity(parts.cosines)
    cut = tolerances.DEPENDENT_RIDGES * min(parts.ridge, tolerances.DEPENDENT_RIDGE_LIMIT)
    if can_sync(cosines):
        columns = torch.linalg.solve_ex(cosines, torch.cat((right, eye.expand_as(cosines)), -1))[0]
        # The trace of the inverse is the sum of the reciprocal eigenvalues.
        trace = columns[..., 1:].diagonal(dim1=-2, dim2=-1).sum(-1)
        if bool(((trace > 0) & (trace < tolerances.REGULAR_MARGIN / cut)).all()):
            return columns[..., :1], right
    # McWeeny's purification turns τ(C + τ)⁻¹ into the projection on the null space: see `docs/numerics.md`.
    null = torch.linalg.solve_ex(cosines + cut * eye, (cut * eye).expand_as(cosines))[0]
    for _ in range(tolerances.PURIFICATIONS):
        square = torch.bmm(null, null)
        null = torch.baddbmm(square, square, null, beta=3.0, alpha=-2.0)
    reached = right - torch.bmm(null, right)
    x = torch.linalg.solve_ex(cosines + null, reached)[0]
    return x - torch.bmm(null, x), reached
