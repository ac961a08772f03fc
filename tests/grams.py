"""Gram matrices of every kind: regular, crowded, conflicting, scaled, degenerate."""

import torch
from torch import Tensor

KINDS = ("regular", "crowded", "conflicting", "scaled", "duplicated", "opposite", "zero", "absent")
REGULAR = ("regular", "conflicting", "scaled")  # those where every method has its solution


def jacobians(kind: str, batch: int, tasks: int, seed: int = 0) -> Tensor:
    """Task gradients (batch, T, P) in float64."""
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
    j = jacobians(kind, batch, tasks, seed)
    gram = j @ j.mT
    if kind == "absent":
        for index in range(batch):  # each matrix lacks another task
            gram[index, index % tasks] = torch.nan
            gram[index, :, index % tasks] = torch.nan
    return gram


def unit(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and norms."""
    norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    return gram / norms.unsqueeze(-1) / norms.unsqueeze(-2), norms
