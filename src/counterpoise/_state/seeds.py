"""Seeds of the methods that draw random numbers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def replica_seeds(seed: int | Sequence[int], batch_shape: tuple[int, ...]) -> Tensor:
    """Return one seed per replica; a single seed is increased by one from replica to replica."""
    given = torch.as_tensor(math.nan if isinstance(seed, str) else seed)
    if given.is_floating_point():
        raise TypeError(f"seed is {seed!r}, expected an integer, or one integer per replica")
    given = given.long()
    if given.dim() == 0:
        given = given + torch.arange(torch.Size(batch_shape).numel()).view(batch_shape)
    if given.shape != batch_shape:
        raise ValueError(f"seed has shape {tuple(given.shape)}, expected a single seed or shape {batch_shape}")
    return given
