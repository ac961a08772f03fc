"""Fast path for a single small Gram matrix on the CPU: scalar arithmetic in Python around one LAPACK call.

For three tasks, dispatching some thirty tensor operations costs more than computing the numbers one by one. Each
function returns None if its matrix is not regular enough; the tensor implementation then takes over.
"""

import math

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import can_sync

Matrix = list[list[float]]


def imtl_g_weights(gram: Tensor, ridge: float, largest_trace: float) -> list[float] | None:
    """Return α ∝ G⁻¹√diag(G) with Σα = 1, if the trace of C⁻¹ shows that no gradient depends on the others."""
    parts = _normalise(gram)
    if parts is None:
        return None
    cosines, norms = parts
    for i, row in enumerate(cosines):
        row[i] = 1.0 + ridge
    inverse = torch.linalg.inv_ex(torch.tensor(cosines, dtype=torch.float64))[0].tolist()
    if not 0 < sum(row[i] for i, row in enumerate(inverse)) < largest_trace:
        return None
    scaled = [sum(row) for row in inverse]
    weights = [x / n for x, n in zip(scaled, norms, strict=True)]
    total = sum(weights)
    return [w / total for w in weights] if total > tolerances.WEIGHT_SUM * sum(map(abs, weights)) else None


def nash_weights(gram: Tensor) -> list[float] | None:
    """Return α with α_i (Gα)_i = 1, if full Newton steps converge, which they do unless conflict is strong."""
    parts = _normalise(gram)
    if parts is None:
        return None
    cosines, norms = parts
    x = [max(sum(row), tolerances.START_FLOOR) ** -0.5 for row in cosines]
    x = [xi * max(xi * _dot(row, x), tolerances.START_FLOOR) ** -0.5 for row, xi in zip(cosines, x, strict=True)]
    for _ in range(tolerances.SMALL_NEWTON_ROUNDS):
        # Newton's step is x ← x(1 + y) with (H + 1)(1 + y) = 2 and H = diag(x) C diag(x), as in `nash`.
        hessian = [[c * xi * xj for c, xj in zip(row, x, strict=True)] for row, xi in zip(cosines, x, strict=True)]
        for i, row in enumerate(hessian):
            row[i] += 1.0
        ratios = _solve(hessian, [2.0] * len(x))
        longest = max(abs(ratio - 1) for ratio in ratios)
        if not longest < tolerances.FULL_STEP:
            return None
        x = [xi * ratio for xi, ratio in zip(x, ratios, strict=True)]
        if longest < tolerances.NEWTON_CONVERGED:
            return [xi / n for xi, n in zip(x, norms, strict=True)]
    return None


def _normalise(gram: Tensor) -> tuple[Matrix, list[float]] | None:
    """Return cosines and norms, if all gradients are present and of comparable norm."""
    if (
        gram.dim() != 2
        or gram.shape[0] != gram.shape[1]
        or gram.shape[0] > tolerances.SMALL_TASKS
        or not can_sync(gram)
    ):
        return None
    rows: Matrix = gram.tolist()
    squares = [row[i] for i, row in enumerate(rows)]
    largest = min(tolerances.COMPARABLE_SQUARES * min(squares), math.inf)
    if not all(0 < square < largest for square in squares):  # also False for NaN
        return None
    norms = [math.sqrt(square) for square in squares]
    cosines = [
        [entry / (n * m) for entry, m in zip(row, norms, strict=True)] for row, n in zip(rows, norms, strict=True)
    ]
    return cosines, norms


def _solve(matrix: Matrix, right: list[float]) -> list[float]:
    solution = torch.linalg.solve_ex(
        torch.tensor(matrix, dtype=torch.float64), torch.tensor(right, dtype=torch.float64).unsqueeze(-1)
    )[0]
    values: list[float] = solution.flatten().tolist()
    return values


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
