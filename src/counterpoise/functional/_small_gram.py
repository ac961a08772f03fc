"""A single small Gram matrix on the CPU: Python's arithmetic around one LAPACK call.

Some thirty tensor operations are dispatched for an answer of three numbers; worked out one by one they cost less.
Each function returns None where its matrix is not as plain as that: the tensor operations then take over.
"""

import math

import torch
from torch import Tensor

from ._gram import looking_is_free

LARGEST = 8
Matrix = list[list[float]]


def cosines_of(gram: Tensor) -> tuple[Matrix, list[float]] | None:
    """Cosines and norms, where all gradients are present and of comparable size."""
    if gram.dim() != 2 or gram.shape[0] != gram.shape[1] or gram.shape[0] > LARGEST or not looking_is_free(gram):
        return None
    rows: Matrix = gram.tolist()
    squares = [row[i] for i, row in enumerate(rows)]
    largest = min(1e12 * min(squares), math.inf)
    if not all(0 < square < largest for square in squares):  # NaN is neither
        return None
    norms = [math.sqrt(square) for square in squares]
    cosines = [
        [entry / (n * m) for entry, m in zip(row, norms, strict=True)] for row, n in zip(rows, norms, strict=True)
    ]
    return cosines, norms


def imtl_g(gram: Tensor, ridge: float, largest: float) -> list[float] | None:
    """α ∝ G⁻¹√diag(G) with Σα = 1, for gradients that do not depend on each other: the trace of C⁻¹ tells."""
    found = cosines_of(gram)
    if found is None:
        return None
    cosines, norms = found
    for i, row in enumerate(cosines):
        row[i] = 1.0 + ridge
    inverse = torch.linalg.inv_ex(torch.tensor(cosines, dtype=torch.float64))[0].tolist()
    if not 0 < sum(row[i] for i, row in enumerate(inverse)) < largest:
        return None
    scaled = [sum(row) for row in inverse]
    weights = [x / n for x, n in zip(scaled, norms, strict=True)]
    total = sum(weights)
    return [w / total for w in weights] if total > 1e-6 * sum(map(abs, weights)) else None


def nash(gram: Tensor, small: float) -> list[float] | None:
    """α_i (Gα)_i = 1 by full Newton steps, which reach it from the start for all but strong conflict."""
    found = cosines_of(gram)
    if found is None:
        return None
    cosines, norms = found
    x = [max(sum(row), 0.25) ** -0.5 for row in cosines]
    x = [xi * max(xi * _dot(row, x), 0.25) ** -0.5 for row, xi in zip(cosines, x, strict=True)]
    half = [0.5] * len(x)
    for _ in range(8):
        hessian = [[c * xi * xj for c, xj in zip(row, x, strict=True)] for row, xi in zip(cosines, x, strict=True)]
        for i, row in enumerate(hessian):
            row[i] += 1.0
        z = [2 * value for value in _solve(hessian, half)]
        longest = 2 * max(abs(zi - 0.5) for zi in z)
        if not longest < 0.25:
            return None
        x = [2 * xi * zi for xi, zi in zip(x, z, strict=True)]
        if longest < small:
            return [xi / n for xi, n in zip(x, norms, strict=True)]
    return None


def _solve(matrix: Matrix, right: list[float]) -> list[float]:
    solved = torch.linalg.solve_ex(
        torch.tensor(matrix, dtype=torch.float64), torch.tensor(right, dtype=torch.float64).unsqueeze(-1)
    )[0]
    answer: list[float] = solved.flatten().tolist()
    return answer


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
