"""Random numbers as a pure function of a seed and a counter.

A draw needs no generator object; its state is two integer buffers. Draws are therefore equal on every device and rank,
survive a checkpoint, compile, replay in a CUDA graph, and differ between the replicas of a batch.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

_WEYL = 0x9E3779B97F4A7C15 - (1 << 64)  # the constants of splitmix64 as signed integers, which is what torch has
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_BLOCK = 64  # number of draws that are computed at once for Python floats


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift right with zero fill; torch's operator keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Apply the finaliser of splitmix64 in wrapping 64-bit arithmetic."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def random_bits(seed: Tensor, counter: Tensor, count: int) -> Tensor:
    """Return `count` draws of 64 random bits for each seed (…): shape (…, count), int64."""
    index = counter.unsqueeze(-1) * count + torch.arange(1, count + 1, device=seed.device)
    return _mix(_mix(seed).unsqueeze(-1) + index * _WEYL)


def uniform(seed: Tensor, counter: Tensor, count: int) -> Tensor:
    """Draw uniformly from the open interval (0, 1).

    Args:
        seed (Tensor): Seeds, int64, shape (…).
        counter (Tensor): Number of the draw, int64, shape (…). Different counters give independent draws.
        count (int): Number of values per seed.

    Returns:
        Tensor: Shape (…, count), float64 (float32 on MPS).

    Example:
        >>> uniform(torch.tensor(0), torch.tensor(1), 2)
        tensor([0.0264, 0.9709], dtype=torch.float64)
    """
    bits = random_bits(seed, counter, count)
    dtype = torch.float32 if seed.device.type == "mps" else torch.float64
    digits = 23 if dtype == torch.float32 else 52
    return (_shift_right(bits, 64 - digits).to(dtype) + 0.5) * 2.0**-digits


def normal(seed: Tensor, counter: Tensor, count: int) -> Tensor:
    """Draw from the standard normal distribution with the Box-Muller transform.

    Args:
        seed (Tensor): Seeds, int64, shape (…).
        counter (Tensor): Number of the draw, int64, shape (…). Different counters give independent draws.
        count (int): Number of values per seed.

    Returns:
        Tensor: Shape (…, count), float64 (float32 on MPS).

    Example:
        >>> normal(torch.tensor(0), torch.tensor(1), 2)
        tensor([0.9745, 0.2017], dtype=torch.float64)
    """
    u = uniform(seed, counter, 2 * count)
    return (-2 * u[..., :count].log()).sqrt() * (2 * math.pi * u[..., count:]).cos()


def draw_floats(draw: Callable[[Tensor, Tensor, int], Tensor], seed: int, counter: int, count: int) -> list[float]:
    """Draw as `uniform` or `normal` for one seed on the CPU, in Python floats."""
    block, place = divmod(counter, _BLOCK)
    return _draw_block(draw, seed, block, count)[place]


@lru_cache(maxsize=8)
def _draw_block(draw: Callable[[Tensor, Tensor, int], Tensor], seed: int, block: int, count: int) -> list[list[float]]:
    """Draw for successive counters at once, which takes little longer than one draw."""
    first = block * _BLOCK
    counters = torch.arange(first, first + _BLOCK, device="cpu")
    draws: list[list[float]] = draw(torch.tensor(seed, device="cpu"), counters, count).tolist()
    return draws
