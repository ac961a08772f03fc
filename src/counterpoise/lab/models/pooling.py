"""Max-pooling over windows of 2 × 2 that remembers where each maximum stood, and its inverse, as plain arithmetic.

A compiler fuses these with what stands before and after. torch's own unpooling is a scatter: it cannot be fused, wants
indices of eight bytes and another memory layout. Windows do not overlap, so one byte says it all.
"""

import torch
from torch import Tensor


def winners(x: Tensor) -> Tensor:
    """Which cell of each window is the largest, (N, C, H/2, W/2): 0 to 3 in reading order, the first of equals."""
    cells = _windows(x.detach())
    largest = cells[:, :, :, 0, :, 0]
    which = torch.zeros_like(largest, dtype=torch.uint8)
    for number, (row, column) in enumerate(((0, 1), (1, 0), (1, 1)), 1):
        cell = cells[:, :, :, row, :, column]
        better = (cell > largest) | cell.isnan()
        largest, which = torch.where(better, cell, largest), torch.where(better, number, which)
    return which


def picked(x: Tensor, which: Tensor) -> Tensor:
    """What stands in one cell of each window: max-pooling, if these are the winners."""
    return torch.where(_chosen(which), _windows(x), 0).sum((3, 5), dtype=x.dtype)


def placed(x: Tensor, which: Tensor) -> Tensor:
    """Windows of zeros with x in one cell of each: the transpose of `picked`."""
    height, width = x.shape[2:]
    cells = torch.where(_chosen(which), x[:, :, :, None, :, None], 0)
    out = cells.reshape(*x.shape[:2], 2 * height, 2 * width)
    return out.contiguous(memory_format=torch.channels_last)  # what the next convolution wants: else it is copied


def _windows(x: Tensor) -> Tensor:
    """(N, C, H, W) as (N, C, H/2, 2, W/2, 2)."""
    windows: Tensor = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return windows


def _chosen(which: Tensor) -> Tensor:
    cells = torch.arange(4, dtype=torch.uint8, device=which.device).view(2, 1, 2)
    return which[:, :, :, None, :, None] == cells
