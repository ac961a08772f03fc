"""Random streams of the methods that draw."""

from collections.abc import Sequence

import torch
from torch import Tensor


def replica_seeds(seed: int | Sequence[int], batch_shape: tuple[int, ...]) -> Tensor:
    """One seed for each replica: as given, or a single one counted up over the replicas."""
    given = torch.as_tensor(seed)
    if given.is_floating_point():
        raise TypeError(f"seed is {seed}, expected an integer or one for each replica")
    given = given.long()
    if given.dim() == 0:
        given = given + torch.arange(torch.Size(batch_shape).numel()).view(batch_shape)
    if given.shape != batch_shape:
        raise ValueError(f"seed has shape {tuple(given.shape)}, expected one seed, or {batch_shape}")
    return given
