"""Linear systems of a batch, and matrices that rounding has made indefinite."""

import torch
from torch import Tensor

from . import _tolerances as tolerances

MAX_ENTRY = 2.0  # entries are cosines, or sums of a cosine and a product of numbers up to 1


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Return X with MX = B for matrices M (…, T, T) and right-hand sides B (…, T, K) with the same leading dimensions.

    X is not finite where M is singular.

    On a CPU, a batch of large matrices is solved one matrix at a time. With several threads PyTorch factorises the
    matrices of a batch in parallel, and MKL then hangs or fails for T > 150
    (https://github.com/pytorch/pytorch/issues/142815, https://github.com/pytorch/pytorch/issues/141358).
    """
    if matrix.device.type != "cpu" or matrix.shape[-1] <= tolerances.BATCHED_TASKS or matrix.dim() == 2:
        solution: Tensor = torch.linalg.solve_ex(matrix, right)[0]
        return solution
    pairs = zip(matrix.flatten(0, -3), right.flatten(0, -3), strict=True)
    solutions = [torch.linalg.solve_ex(m, b)[0] for m, b in pairs]
    return torch.stack(solutions).view(right.shape) if solutions else torch.empty_like(right)


def smallest_eigenvalue(matrix: Tensor) -> Tensor:
    """Return the smallest eigenvalue of symmetric matrices (B, T, T) of cosines, shape (B, 1, 1). Waits for a device.

    Entries that no cosine can have, such as NaN, are replaced: they would raise an error.
    """
    values: Tensor = torch.linalg.eigvalsh(matrix.nan_to_num(0.0).clamp(-MAX_ENTRY, MAX_ENTRY))
    return values[:, :1, None]


def shift_to_definite(matrix: Tensor, rows: Tensor, rounding: float) -> Tensor:
    """Return the batch (B, T, T) with its indefinite matrices shifted by twice their smallest eigenvalue.

    This applies to the given rows (a mask) of which the smallest eigenvalue is between −`rounding` and 0.
    """
    lowest = smallest_eigenvalue(matrix[rows])
    shift = torch.where((lowest < 0) & (lowest >= -rounding), -2 * lowest, 0.0)
    shifted = matrix.clone()
    shifted[rows] += shift * torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    return shifted
