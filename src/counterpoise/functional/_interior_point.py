"""Primal-dual interior-point method for linear complementarity, which also works for nearly singular matrices."""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import can_sync, identity
from ._linear_systems import solve


def solve_interior_point(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find x ≥ 0, y = Mx + q ≥ 0 with x_i y_i = 0 for one offset q (N, T, 1) per matrix.

    Newton's method solves Mx + q = y, x_i y_i = t with x and y kept positive, while t decreases towards 0; t
    decreases faster after a longer step (Wright, Primal-Dual Interior-Point Methods, 1997). M + diag(y/x) is regular
    for every positive semi-definite M. In the end, x_i > y_i marks the support.

    Returns x, y, and the mask (N, 1, 1) of problems that are not solved.
    """
    may_stop, eye = can_sync(offset), identity(matrix)
    scale = offset.abs().amax(-2, keepdim=True).clamp_min(tolerances.TINY)
    offset = offset / scale
    x, y = torch.ones_like(offset), torch.ones_like(offset)
    centring: Tensor | float = tolerances.CENTRING_FIRST
    for _ in range(tolerances.INTERIOR_ROUNDS if may_stop else tolerances.INTERIOR_DEVICE_ROUNDS):
        values = torch.baddbmm(offset, matrix, x)  # the target of y
        if may_stop and not bool((_relative_error(values, x, y) > tolerances.INTERIOR_EXACT).any()):
            break
        target = ((x * y).mean(-2, keepdim=True) * centring).clamp_min(tolerances.CENTRING_FLOOR) / x
        slopes = y / x
        dx = solve(torch.addcmul(matrix, eye, slopes), target - values)
        dy = torch.addcmul(target - y, slopes, dx, value=-1)
        fraction = tolerances.BOUNDARY_FRACTION
        length = -fraction / torch.minimum(dx / x, dy / y).amin(-2, keepdim=True).clamp_max(-fraction)
        x, y = torch.addcmul(x, length, dx), torch.addcmul(y, length, dy)
        centring = (1 - length).square().clamp(tolerances.CENTRING_LEAST, tolerances.CENTRING_FIRST)
    unsolved = ~(_relative_error(torch.baddbmm(offset, matrix, x), x, y) <= tolerances.INTERIOR_SOLVED)
    return (x * scale).nan_to_num(0.0, 0.0), y * scale, unsolved


def _relative_error(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the largest violation of y = values and x_i y_i = 0, relative to the size of x, (N, 1, 1)."""
    error = torch.maximum((values - y).abs(), x * y).amax(-2, keepdim=True)
    return error / x.amax(-2, keepdim=True).clamp_min(1.0)
