"""Linear complementarity: the one problem behind MGDA, CAGrad and UPGrad.

Find x ≥ 0 with y = Mx + q ≥ 0 and xᵀy = 0, for M positive semi-definite: the optimality conditions of
min ½xᵀMx + qᵀx over x ≥ 0. Which x are positive, the support, is all there is to find: the rest is a linear system.

On the CPU by block principal pivoting (Júdice and Pires 1994): guess the support, solve, move every variable that came
out with the wrong sign to the other side, repeat. It ends after a few rounds, unless gradients depend on each other:
then it may cycle, and an interior point finds the support. On a device, where nothing may be looked at, a few tasks
have so few supports that all are tried at once; for more tasks there is the interior point again.
"""

import torch
from torch import Tensor

from ._gram import identity, looking_is_free
from ._interior_point import interior

BLOCK_ROUNDS = 10
SYSTEMS = 1 << 16  # as many as are solved at once where all supports are tried
MOST = 10  # tasks for which they are


def complementarity(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Solves for K offsets, the columns of (B, T, K), with one matrix (B, T, T) of about unit diagonal.

    Returns x (B, T, K), and where no solution was found (B, K): a matrix that is not positive semi-definite has none.
    """
    if looking_is_free(matrix):
        return _by_pivoting(matrix, offset)
    if few_supports(matrix):
        return _of_all_supports(matrix, offset)
    batch, tasks, count = offset.shape
    each = matrix.unsqueeze(1).expand(-1, count, -1, -1).reshape(-1, tasks, tasks)
    x, unsolved = _from_inside(each, offset.mT.reshape(-1, tasks, 1))
    return x.view(batch, count, tasks).mT, unsolved.view(batch, count)


def _by_pivoting(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    eye = identity(matrix)
    each = matrix.unsqueeze(1)
    negated = -offset
    free = offset < 0
    for _ in range(BLOCK_ROUNDS):
        rows = free.mT.unsqueeze(-1)  # (B, K, T, 1)
        right = torch.where(free, negated, 0.0)
        x = torch.linalg.solve_ex(on(rows, each, eye), right.mT.unsqueeze(-1))[0].squeeze(-1).mT
        # Where x is free, y is 0, and the other way round: one sum shows both signs.
        wrong = negative(torch.baddbmm(offset, matrix, x).add_(x), x)
        if not bool(wrong.any()):
            return x.clamp_min(0.0), wrong[:, 0]
        free = free ^ wrong
    unsolved = wrong.any(-2)
    rest = unsolved.nonzero(as_tuple=True)
    columns = x.mT.clamp_min(0.0)
    found, failed = _from_inside(matrix[rest[0]], offset.mT[rest].unsqueeze(-1))
    columns[rest], unsolved[rest] = found.squeeze(-1), failed.flatten()
    return columns.mT, unsolved


def _from_inside(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """x (N, T, 1) for one offset each: exact on the support that an interior point shows, if signs are right there."""
    inner, y, unsolved = interior(matrix, offset)
    free = inner > y
    x = torch.linalg.solve_ex(on(free, matrix, identity(matrix)), torch.where(free, -offset, 0.0))[0]
    exact = ~negative(torch.baddbmm(offset, matrix, x).add_(x), x).any(-2, keepdim=True)
    return torch.where(exact, x.clamp_min(0.0), inner), unsolved & ~exact


def _of_all_supports(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Of all solutions without regard to signs, the one whose signs are least wrong."""
    each, free = matrix.unsqueeze(1), supports(matrix)
    offsets = offset.unsqueeze(1)
    x = torch.linalg.solve_ex(on(free, each, identity(matrix)), torch.where(free, -offsets, 0.0))[0]
    violation = (-(each @ x + offsets + x)).amax(-2).nan_to_num(torch.inf)
    least, best = violation.min(1)
    x = x.take_along_dim(best[:, None, None], 1).squeeze(1)
    size = x.abs().amax(-2) + offset.abs().amax(-2)
    return x.clamp_min(0.0).nan_to_num(0.0), ~(least <= 1e-9 * size)


def few_supports(matrix: Tensor) -> bool:
    batch, tasks = matrix.shape[:2]
    return tasks <= MOST and batch << tasks <= SYSTEMS


def supports(matrix: Tensor) -> Tensor:
    """All subsets of the tasks, (2^T, T, 1)."""
    tasks = matrix.shape[-1]
    numbers = torch.arange(1 << tasks, device=matrix.device).view(-1, 1, 1)
    return (numbers >> torch.arange(tasks, device=matrix.device).view(-1, 1)) % 2 == 1


def on(free: Tensor, matrix: Tensor, eye: Tensor) -> Tensor:
    """The matrix on the free variables (a column), the identity on the others."""
    return torch.where(free & free.mT, matrix, eye)


def negative(signs: Tensor, x: Tensor) -> Tensor:
    """What is negative beyond rounding, or no number."""
    return ~(signs >= x.abs().amax(-2, keepdim=True) * -1e-13)
