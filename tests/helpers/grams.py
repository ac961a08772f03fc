"""Gram matrices of every kind: regular, rank-deficient, conflicting, scaled and degenerate."""

import itertools

import torch
from torch import Tensor

KINDS = ("regular", "crowded", "conflicting", "scaled", "duplicated", "opposite", "zero", "absent")
REGULAR = ("regular", "conflicting", "scaled")  # the kinds for which every method has a solution
SIZES = (1, 2, 3, 5, 8, 16)
# Arguments of `dependent`: tasks, rank, noise.
DEPENDENT = [(4, 2, 0.0), (8, 4, 1e-4), (10, 6, 0.0), (16, 8, 0.0), (16, 8, 1e-4), (32, 16, 0.0), (32, 16, 1e-4)]


def jacobians(kind: str, batch: int, tasks: int, seed: int = 0) -> Tensor:
    """Return task gradients (batch, T, P) in float64."""
    generator = torch.Generator().manual_seed(seed + 100 * tasks)
    size = max(2, tasks // 2) if kind == "crowded" else 60
    j = torch.randn(batch, tasks, size, generator=generator, dtype=torch.float64)
    if kind == "conflicting":
        j = j - 1.3 * j.mean(1, keepdim=True)
    elif kind == "scaled":
        j = j * 10 ** (24 * torch.rand(batch, tasks, 1, generator=generator, dtype=torch.float64) - 12)
    elif kind == "duplicated":
        j[:, -1] = j[:, 0]
    elif kind == "opposite":
        j[:, -1] = -3 * j[:, 0]
    elif kind == "zero":
        j[:, 0] = 0
    return j


def grams(kind: str, batch: int, tasks: int, seed: int = 0) -> Tensor:
    """Return Gram matrices (batch, T, T) in float64."""
    j = jacobians(kind, batch, tasks, seed)
    gram = j @ j.mT
    if kind == "absent":
        for index in range(batch):  # a different absent task in each matrix
            gram[index, index % tasks] = torch.nan
            gram[index, :, index % tasks] = torch.nan
    return gram


def cosines_and_norms(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Split a Gram matrix into cosines and norms."""
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    return gram / norms.unsqueeze(-1) / norms.unsqueeze(-2), norms


def dependent(tasks: int, rank: int, noise: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return six Jacobians of rank below T; with noise, the rank is full but the matrices are ill conditioned."""
    generator = torch.Generator().manual_seed(tasks + rank)
    j = torch.randn(6, tasks, rank, generator=generator, dtype=torch.float64)
    rest = torch.randn(6, tasks, tasks, generator=generator, dtype=torch.float64)
    return torch.cat((j, noise * rest), -1).to(dtype)


def simplex_grid(tasks: int, steps: int) -> Tensor:
    """Return all points of the simplex whose entries are multiples of 1/steps."""
    points = [p for p in itertools.product(range(steps + 1), repeat=tasks) if sum(p) == steps]
    return torch.tensor(points, dtype=torch.float64) / steps
