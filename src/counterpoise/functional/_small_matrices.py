"""Single small matrices on the CPU in Python arithmetic, which is faster than dispatching tensor operations.

Each function returns None if its matrix is not regular enough; the tensor implementation then takes over.
"""

import math
from operator import mul

from torch import Tensor

from . import _scalar_fast_path
from . import _tolerances as tolerances
from ._gram import can_sync

Matrix = list[list[float]]
LEAST_PIVOT_RIDGES = 1e3  # pivots of the cosines below this many ridges are left to the tensor implementation


def read_matrix(matrix: Tensor) -> Matrix | None:
    """Return the entries of a single small square matrix whose values are finite."""
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] > tolerances.SMALL_TASKS:
        return None
    if not can_sync(matrix):
        return None
    rows: Matrix = matrix.tolist()
    return rows if all(math.isfinite(entry) for row in rows for entry in row) else None


def normalise_small(gram: Tensor) -> tuple[Matrix, list[float]] | None:
    """Return cosines and norms of a single small Gram matrix, if all gradients are present and of comparable norm."""
    return _scalar_fast_path._normalise(gram)


def read_vector(vector: Tensor, size: int) -> list[float] | None:
    """Return the entries of a vector of this size whose values are finite."""
    if vector.shape != (size,) or not can_sync(vector):
        return None
    values: list[float] = vector.tolist()
    return values if all(map(math.isfinite, values)) else None


def invert_factor(matrix: Matrix, least: float) -> Matrix | None:
    """Return L⁻¹ for the Cholesky factorisation LLᵀ of the matrix, unless a pivot is below `least`."""
    size = len(matrix)
    lower: Matrix = []
    inverse: Matrix = []
    for i in range(size):
        row: list[float] = []
        for j in range(i):
            row.append((matrix[i][j] - sum(map(mul, row, lower[j]))) / lower[j][j])
        pivot = matrix[i][i] - sum(entry * entry for entry in row)
        if not pivot > least:
            return None
        root = math.sqrt(pivot)
        inverse.append([-sum(row[k] * inverse[k][j] for k in range(j, i)) / root for j in range(i)] + [1 / root])
        lower.append([*row, root])
    return inverse


def solve_factored(inverse: Matrix, right: list[float]) -> list[float]:
    """Return M⁻¹b from the inverse factor of M."""
    half = [sum(map(mul, row, right)) for row in inverse]
    return [sum(inverse[i][j] * half[i] for i in range(j, len(half))) for j in range(len(half))]


def solve_complementarity(matrix: Matrix, offset: list[float], least: float) -> list[float] | None:
    """Return x ≥ 0 with y = Mx + q ≥ 0 and xᵀy = 0 by block pivoting: see `_complementarity`."""
    free = [j for j, q in enumerate(offset) if q < 0]
    for _ in range(tolerances.BLOCK_ROUNDS):
        x = [0.0] * len(offset)
        if free:
            inverse = invert_factor([[matrix[i][j] for j in free] for i in free], least)
            if inverse is None:
                return None
            for j, value in zip(free, solve_factored(inverse, [-offset[j] for j in free]), strict=True):
                x[j] = value
        slack = -tolerances.SIGN_ROUNDING * max(map(abs, x), default=0.0)
        signed = [x[j] if j in free else q + sum(map(mul, matrix[j], x)) for j, q in enumerate(offset)]
        wrong = [j for j, value in enumerate(signed) if not value >= slack]
        if not wrong:
            return [max(value, 0.0) for value in x]
        free = [j for j in range(len(offset)) if (j in free) != (j in wrong)]
    return None


def project_on_simplex(x: list[float]) -> list[float]:
    """Return the nearest point of the simplex."""
    total, shift = 0.0, 0.0
    for count, value in enumerate(sorted(x, reverse=True), 1):
        total += value
        if value > (total - 1) / count:
            shift = (total - 1) / count
    return [max(value - shift, 0.0) for value in x]
