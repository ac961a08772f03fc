"""Eigenvalues of small symmetric matrices on CUDA in one kernel, by Jacobi rotations.

`functional._jacobi` is the reference implementation. Its rotations are thousands of small kernels in a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...functional._jacobi import SWEEPS


@triton.jit
def _rotate(matrix, j, p, q, cosine, sine):  # type: ignore[no-untyped-def]
    """Rotate the columns p and q of a matrix."""
    at_p = tl.sum(tl.where(j == p, matrix, 0.0), 1)[:, None]
    at_q = tl.sum(tl.where(j == q, matrix, 0.0), 1)[:, None]
    turned = tl.where(j == q, sine * at_p + cosine * at_q, matrix)
    return tl.where(j == p, cosine * at_p - sine * at_q, turned)


@triton.jit
def _entry(matrix, i, j, row, column):  # type: ignore[no-untyped-def]
    return tl.sum(tl.sum(tl.where((i == row) & (j == column), matrix, 0.0), 1), 0)


@triton.jit  # type: ignore[untyped-decorator]
def jacobi(matrix, values, vectors, tasks: tl.constexpr, size: tl.constexpr, sweeps: tl.constexpr):  # type: ignore[no-untyped-def]
    """Decompose one matrix (T, T) per program."""
    run = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, size)[:, None], tl.arange(0, size)[None, :]
    place, inside = run * tasks * tasks + i * tasks + j, (i < tasks) & (j < tasks)
    a = tl.load(matrix + place, inside, other=0.0)
    v = tl.where(i == j, a * 0.0 + 1.0, a * 0.0)
    for _ in range(sweeps):
        for p in range(tasks - 1):
            for q in range(p + 1, tasks):
                off = _entry(a, i, j, p, q)
                ratio = (_entry(a, i, j, q, q) - _entry(a, i, j, p, p)) / (2 * off)
                length = tl.where(ratio < 0, -ratio, ratio) + tl.sqrt(1 + ratio * ratio)
                tangent = tl.where(off == 0, 0.0, tl.where(ratio < 0, -1 / length, 1 / length))
                cosine = 1 / tl.sqrt(1 + tangent * tangent)
                sine = cosine * tangent
                a = _rotate(a, j, p, q, cosine, sine)
                at_p = tl.sum(tl.where(i == p, a, 0.0), 0)[None, :]
                at_q = tl.sum(tl.where(i == q, a, 0.0), 0)[None, :]
                a = tl.where(i == p, cosine * at_p - sine * at_q, tl.where(i == q, sine * at_p + cosine * at_q, a))
                v = _rotate(v, j, p, q, cosine, sine)
    tl.store(vectors + place, v, inside)
    tl.store(values + run * tasks + i + j * 0, a, inside & (i == j))


def jacobi_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `functional._jacobi.jacobi_eigh` returns, for float64 matrices (R, T, T)."""
    matrix = matrix.contiguous()
    tasks = matrix.shape[-1]
    values, vectors = matrix.new_empty(matrix.shape[:-1]), torch.empty_like(matrix)
    size = triton.next_power_of_2(tasks)
    jacobi[(len(matrix), 1)](matrix, values, vectors, tasks=tasks, size=size, sweeps=SWEEPS, num_warps=1)
    return values, vectors
