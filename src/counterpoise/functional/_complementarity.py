"""Linear complementarity: the problem behind MGDA, CAGrad and UPGrad.

Find x ≥ 0 with y = Mx + q ≥ 0 and xᵀy = 0, for positive semi-definite M. These are the optimality conditions of
min ½xᵀMx + qᵀx over x ≥ 0. Once the support of x (the set of its positive entries) is known, x solves a linear system.

Three algorithms find the support: block principal pivoting, enumeration of all supports, and an interior point. The
section "Linear complementarity" of `docs/numerics.md` says when each is used.
"""

import itertools

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import can_sync, identity
from ._interior_point import solve_interior_point
from ._linear_systems import shift_to_definite, solve


def complementarity(matrix: Tensor, offset: Tensor, *, rounding: float = 0.0) -> tuple[Tensor, Tensor]:
    """Solve linear complementarity problems: x ≥ 0, y = Mx + q ≥ 0, xᵀy = 0.

    Args:
        matrix (Tensor): Positive semi-definite matrices M with a diagonal of about 1, shape (B, T, T).
        offset (Tensor): K offsets q for each matrix, as columns, shape (B, T, K).
        rounding (float, optional): Absolute value of a negative eigenvalue that is attributed to rounding. On the CPU,
            a matrix with such an eigenvalue is shifted to be positive definite if pivoting fails. Default: 0.0.

    Returns:
        tuple[Tensor, Tensor]: The solutions x, shape (B, T, K), and a boolean mask (B, K) that is True where none was
        found. A matrix that is not positive semi-definite may have none.

    Example:
        >>> x, unsolved = complementarity(torch.eye(2).unsqueeze(0), torch.tensor([[[-2.0], [1.0]]]))
        >>> x.flatten().tolist(), unsolved.any().item()
        ([2.0, 0.0], False)

    References:
        Júdice and Pires, A block principal pivoting algorithm for large-scale strictly monotone linear complementarity
        problems. https://doi.org/10.1016/0305-0548(94)90106-6
    """
    if can_sync(matrix):
        return _solve_by_pivoting(matrix, offset, rounding)
    if can_enumerate_supports(matrix):
        return _solve_on_all_supports(matrix, offset)
    batch, tasks, count = offset.shape
    repeated = matrix.unsqueeze(1).expand(-1, count, -1, -1).reshape(-1, tasks, tasks)
    x, unsolved = _solve_by_interior_point(repeated, offset.mT.reshape(-1, tasks, 1))
    return x.view(batch, count, tasks).mT, unsolved.view(batch, count)


def _solve_by_pivoting(matrix: Tensor, offset: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    """Solve on a guessed support and move every variable of the wrong sign to the other side, until none is left."""
    negated = -offset
    free = offset < 0
    for _ in range(tolerances.BLOCK_ROUNDS):
        x = _solve_on_supports(matrix, free, negated)
        # y is 0 where x is free and x is 0 elsewhere, so x + y has the sign of the one that is not 0.
        wrong = _has_wrong_sign(torch.baddbmm(offset, matrix, x).add_(x), x)
        if not bool(wrong.any()):
            return x.clamp_min(0.0), wrong[:, 0]
        free = free ^ wrong
    unsolved = wrong.any(-2)
    rest = unsolved.nonzero(as_tuple=True)
    columns = x.mT.clamp_min(0.0)
    definite = shift_to_definite(matrix, unsolved.any(-1), rounding) if rounding > 0 else matrix
    solutions, failed = _solve_by_interior_point(definite[rest[0]], offset.mT[rest].unsqueeze(-1))
    columns[rest], unsolved[rest] = solutions.squeeze(-1), failed.flatten()
    return columns.mT, unsolved


def _solve_on_supports(matrix: Tensor, free: Tensor, right: Tensor) -> Tensor:
    """Solve Mx = b for the free variables of each column of b and `free` (B, T, K). The other variables are 0."""
    if matrix.shape[-1] <= tolerances.BATCHED_TASKS:
        systems = masked_system(free.mT.unsqueeze(-1), matrix.unsqueeze(1), identity(matrix))
        return solve(systems, torch.where(free, right, 0.0).mT.unsqueeze(-1)).squeeze(-1).mT
    x = torch.zeros_like(right)  # large systems are solved one by one, so that each can have its own size
    for b, k in itertools.product(range(right.shape[0]), range(right.shape[-1])):
        index = free[b, :, k].nonzero().flatten()
        x[b, index, k] = torch.linalg.solve_ex(matrix[b, index][:, index], right[b, index, k])[0]
    return x


def _solve_by_interior_point(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Solve one offset (N, T, 1) per matrix on the support that an interior point indicates.

    If signs are wrong on that support, the interior point itself is the result.
    """
    inner, y, unsolved = solve_interior_point(matrix, offset)
    free = inner > y
    x = solve(masked_system(free, matrix, identity(matrix)), torch.where(free, -offset, 0.0))
    exact = ~_has_wrong_sign(torch.baddbmm(offset, matrix, x).add_(x), x).any(-2, keepdim=True)
    return torch.where(exact, x.clamp_min(0.0), inner), unsolved & ~exact


def _solve_on_all_supports(matrix: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Solve on every support and keep the solution whose signs are violated least."""
    expanded, free = matrix.unsqueeze(1), all_supports(matrix)
    offsets = offset.unsqueeze(1)
    x = solve(masked_system(free, expanded, identity(matrix)), torch.where(free, -offsets, 0.0))
    violation = (-(expanded @ x + offsets + x)).amax(-2).nan_to_num(torch.inf)
    least, best = violation.min(1)
    x = x.take_along_dim(best[:, None, None], 1).squeeze(1)
    size = x.abs().amax(-2) + offset.abs().amax(-2)
    return x.clamp_min(0.0).nan_to_num(0.0), ~(least <= tolerances.ENUMERATION_VIOLATION * size)


def can_enumerate_supports(matrix: Tensor) -> bool:
    """Return whether all supports of matrices (B, T, T) are few enough to be tried in one batch."""
    batch, tasks = matrix.shape[:2]
    most = tolerances.ENUMERATED_CUDA_TASKS if matrix.is_cuda else tolerances.ENUMERATED_TASKS
    return tasks <= most and batch << tasks <= tolerances.ENUMERATED_SYSTEMS


def all_supports(matrix: Tensor) -> Tensor:
    """Return all subsets of the tasks as masks, (2^T, T, 1)."""
    tasks = matrix.shape[-1]
    numbers = torch.arange(1 << tasks, device=matrix.device).view(-1, 1, 1)
    return (numbers >> torch.arange(tasks, device=matrix.device).view(-1, 1)) % 2 == 1


def masked_system(free: Tensor, matrix: Tensor, eye: Tensor) -> Tensor:
    """Return the matrix restricted to the free variables (a column mask), with the identity for the others."""
    return torch.where(free & free.mT, matrix, eye)


def _has_wrong_sign(values: Tensor, x: Tensor) -> Tensor:
    """Return where values are negative beyond rounding, or NaN."""
    return ~(values >= x.abs().amax(-2, keepdim=True) * -tolerances.SIGN_ROUNDING)
