"""An interior point of linear complementarity: as good for matrices that are all but singular as for any other."""

import torch
from torch import Tensor

from ._gram import identity, looking_is_free

ROUNDS = 60  # where it stops when done
ENOUGH = 30  # where it cannot
EXACT = 1e-14


def interior(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x ≥ 0, y = Mx + q ≥ 0 with x_i y_i = 0 for one offset q (N, T, 1) each: x, y, and where they are not found.

    Newton's method on Mx + q = y, x_i y_i = t, with x and y kept positive and t taken towards 0, the faster the longer
    the last step was (Wright 1997). M + diag(y/x) is regular whatever M is. Afterwards x_i > y_i tells the support.
    """
    free, eye = looking_is_free(offset), identity(matrix)
    scale = offset.abs().amax(-2, keepdim=True).clamp_min(1e-300)
    offset = offset / scale
    x, y = torch.ones_like(offset), torch.ones_like(offset)
    part: Tensor | float = 0.3
    for _ in range(ROUNDS if free else ENOUGH):
        values = torch.baddbmm(offset, matrix, x)  # what y is to become
        if free and not bool((_left(values, x, y) > EXACT).any()):
            break
        pull = ((x * y).mean(-2, keepdim=True) * part).clamp_min(1e-16) / x
        slopes = y / x
        dx = torch.linalg.solve_ex(torch.addcmul(matrix, eye, slopes), pull - values)[0]
        dy = torch.addcmul(pull - y, slopes, dx, value=-1)
        # Up to 0.995 of the way to where the first of them would vanish.
        length = -0.995 / torch.minimum(dx / x, dy / y).amin(-2, keepdim=True).clamp_max(-0.995)
        x, y = torch.addcmul(x, length, dx), torch.addcmul(y, length, dy)
        part = (1 - length).square().clamp(1e-3, 0.3)
    unsolved = ~(_left(torch.baddbmm(offset, matrix, x), x, y) <= 1e-9)
    return (x * scale).nan_to_num(0.0, 0.0), y * scale, unsolved


def _left(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(N, 1, 1): how far from a solution, relative to its size."""
    left = torch.maximum((values - y).abs(), x * y).amax(-2, keepdim=True)
    return left / x.amax(-2, keepdim=True).clamp_min(1.0)
