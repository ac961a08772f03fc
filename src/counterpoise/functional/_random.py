"""Random numbers as a pure function of (seed, counter).

A draw needs no generator object: two integer buffers are its whole state. So it is the same on every device and every
rank, survives a checkpoint, compiles, replays in a CUDA graph, and gives each replica of a batch its own stream.
"""

import math

import torch
from torch import Tensor

_WEYL = 0x9E3779B97F4A7C15 - (1 << 64)  # splitmix64's constants, as the signed integers that torch has
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A logical right shift: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, in wrapping 64-bit arithmetic."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def random_bits(seed: Tensor, counter: Tensor, count: int) -> Tensor:
    """`count` draws of 64 random bits for each seed (…): shape (…, count), int64."""
    index = counter.unsqueeze(-1) * count + torch.arange(1, count + 1, device=seed.device)
    return _mix(_mix(seed).unsqueeze(-1) + index * _WEYL)


def uniform(seed: Tensor, counter: Tensor, count: int) -> Tensor:
    """`count` draws from the open interval (0, 1) for each seed (…): shape (…, count), float64 (float32 on MPS)."""
    bits = random_bits(seed, counter, count)
    dtype = torch.float32 if seed.device.type == "mps" else torch.float64
    digits = 23 if dtype == torch.float32 else 52
    return (_shift(bits, 64 - digits).to(dtype) + 0.5) * 2.0**-digits


def normal(seed: Tensor, counter: Tensor, count: int) -> Tensor:
    """`count` standard normal draws for each seed (…), by Box and Muller's transform."""
    u = uniform(seed, counter, 2 * count)
    return (-2 * u[..., :count].log()).sqrt() * (2 * math.pi * u[..., count:]).cos()
