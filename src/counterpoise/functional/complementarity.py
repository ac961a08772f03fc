"""Linear complementarity: the one problem behind MGDA, CAGrad and UPGrad.

Find x ≥ 0 with y = Mx + q ≥ 0 and xᵀy = 0, for M positive semi-definite: the optimality conditions of
min ½xᵀMx + qᵀx over x ≥ 0. Block principal pivoting (Júdice and Pires 1994): guess which x are positive, solve for
them, move every variable that came out with the wrong sign to the other side, repeat. It ends after a few rounds with
the exact solution. Should block moves cycle, moving one variable at a time (Murty 1974) cannot.
"""

import torch
from torch import Tensor

from .gram import identity, none_left

BLOCK_ROUNDS = 10


def complementarity(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Solves for K offsets, the columns of (B, T, K), with one matrix (B, T, T) of about unit diagonal.

    Returns x (B, T, K), and where the rounds did not suffice (B, K).
    """
    tasks = matrix.shape[-1]
    eye = identity(matrix)
    each = matrix.unsqueeze(1)
    negated = -offset
    free = offset < 0
    for count in range(BLOCK_ROUNDS + 4 * tasks):
        rows = free.mT.unsqueeze(-1)  # (B, K, T, 1)
        right = torch.where(free, negated, 0.0)
        x = torch.linalg.solve_ex(on(rows, each, eye), right.mT.unsqueeze(-1))[0].squeeze(-1).mT
        # Where x is free, y is 0, and the other way round: one sum shows both signs.
        wrong = negative(torch.baddbmm(offset, matrix, x).add_(x), x)
        if none_left(wrong):
            break
        free = free ^ (wrong if count < BLOCK_ROUNDS else last_of(wrong))
    return x.clamp_min(0.0), wrong.any(-2)


def on(free: Tensor, matrix: Tensor, eye: Tensor) -> Tensor:
    """The matrix on the free variables (a column), the identity on the others."""
    return torch.where(free & free.mT, matrix, eye)


def negative(signs: Tensor, x: Tensor) -> Tensor:
    """What is negative beyond rounding."""
    return signs < x.abs().amax(-2, keepdim=True) * -1e-13


def last_of(mask: Tensor) -> Tensor:
    """Only the last True of each column."""
    return mask & (mask.flip(-2).cumsum(-2).flip(-2) == 1)
