"""Eigenvalues of small symmetric matrices by Jacobi rotations, without reading values from a device."""

import torch
from torch import Tensor

SWEEPS = 8  # enough for 16 tasks in float64; the off-diagonal part shrinks quadratically


def jacobi_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (…, T), in no order, and the eigenvectors (…, T, T) of symmetric matrices.

    `torch.linalg.eigh` reads an error code from the device. In each round T/2 disjoint pairs of rows and columns are
    rotated at once, so that one sweep over all pairs takes T − 1 rounds.
    """
    tasks = matrix.shape[-1]
    eye = torch.eye(tasks, dtype=matrix.dtype, device=matrix.device)
    rounds = disjoint_pairs(tasks, matrix.device)
    vectors = eye.expand_as(matrix)
    for _ in range(SWEEPS if tasks > 2 else 1):
        for p, q in rounds:
            rotation = _rotations(matrix, eye, p, q)
            matrix = rotation.mT @ matrix @ rotation
            vectors = vectors @ rotation
    return matrix.diagonal(dim1=-2, dim2=-1), vectors


def disjoint_pairs(tasks: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return all pairs of tasks in rounds of disjoint pairs, by the circle method of tournaments.

    The indices are computed on the device, so that a CUDA graph can contain this.
    """
    rounds = tasks - 1 + tasks % 2
    last = torch.arange(rounds, device=device).unsqueeze(-1)
    offset = torch.arange(1, (rounds + 1) // 2, device=device)
    p, q = (last + offset) % rounds, (last - offset) % rounds
    if tasks % 2 == 0:
        p, q = torch.cat([p, last], 1), torch.cat([q, torch.full_like(last, tasks - 1)], 1)
    return list(zip(p.unbind(), q.unbind(), strict=True))


def _rotations(matrix: Tensor, eye: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return the product of the rotations in the planes (p_i, q_i) that make the entries there zero."""
    off = matrix[..., p, q]
    ratio = (matrix[..., q, q] - matrix[..., p, p]) / (2 * off)
    tangent = torch.where(ratio < 0, -1.0, 1.0) / (ratio.abs() + (1 + ratio * ratio).sqrt())
    tangent = torch.where(off == 0, 0.0, tangent)
    cosine = (1 + tangent * tangent).rsqrt()
    sine = cosine * tangent
    rotation = eye.expand_as(matrix).clone()
    rotation[..., p, p] = cosine
    rotation[..., q, q] = cosine
    rotation[..., p, q] = sine
    rotation[..., q, p] = -sine
    return rotation
