"""Max-pooling over 2 × 2 windows and the corresponding unpooling, as element-wise operations that can be fused.

A compiler fuses these operations with the layers before and after them. torch's own unpooling is a scatter, which
cannot be fused, needs 8-byte indices and changes the memory layout. Here one byte per window stores the position of the
maximum, because the windows do not overlap.
"""

import torch
from torch import Tensor


def argmax_2x2(x: Tensor) -> Tensor:
    """Return the position of the maximum in each window, (N, C, H/2, W/2).

    Positions are 0 to 3 in reading order. Among equal values the first one is taken.
    """
    cells = _windows(x.detach())
    largest = cells[:, :, :, 0, :, 0]
    positions = torch.zeros_like(largest, dtype=torch.uint8)
    for number, (row, column) in enumerate(((0, 1), (1, 0), (1, 1)), 1):
        cell = cells[:, :, :, row, :, column]
        larger = (cell > largest) | cell.isnan()
        largest, positions = torch.where(larger, cell, largest), torch.where(larger, number, positions)
    return positions


def pool_2x2(x: Tensor, positions: Tensor) -> Tensor:
    """Return the value at one position of each window: max-pooling, for the positions of `argmax_2x2`."""
    return torch.where(_mask(positions), _windows(x), 0).sum((3, 5), dtype=x.dtype)


def unpool_2x2(x: Tensor, positions: Tensor) -> Tensor:
    """Return windows of zeros with x at one position of each: the transpose of `pool_2x2`."""
    height, width = x.shape[2:]
    cells = torch.where(_mask(positions), x[:, :, :, None, :, None], 0)
    out = cells.reshape(*x.shape[:2], 2 * height, 2 * width)
    return out.contiguous(memory_format=torch.channels_last)  # the next convolution would otherwise copy it


def _windows(x: Tensor) -> Tensor:
    """View (N, C, H, W) as (N, C, H/2, 2, W/2, 2)."""
    windows: Tensor = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return windows


def _mask(positions: Tensor) -> Tensor:
    cells = torch.arange(4, dtype=torch.uint8, device=positions.device).view(2, 1, 2)
    return positions[:, :, :, None, :, None] == cells
