"""Read and write the state of a method as Python floats, for one loss vector on the CPU.

Buffers are taken from the dictionaries of `nn.Module`, because its `__getattr__` takes longer than reading the numbers.
"""

from array import array

import torch
from torch import nn

LARGEST = 3e38  # just below the largest number of float32


def read_floats(module: nn.Module, name: str) -> list[float]:
    """Return the numbers of a buffer or parameter."""
    buffers = module._buffers
    values: list[float] = (buffers if name in buffers else module._parameters)[name].tolist()  # type: ignore[union-attr]
    return values


def write_floats(module: nn.Module, **state: list[float]) -> list[list[float]]:
    """Write the numbers of buffers, float32 or float64; return them in the precision of the buffers.

    Raises:
        OverflowError: If a number is not finite or overflows float32. All buffers are unchanged then.
    """
    if not sum([sum(map(abs, values)) for values in state.values()]) < LARGEST:
        raise OverflowError(f"{', '.join(state)} are not finite or overflow float32")
    written = []
    for name, values in state.items():
        buffer = module._buffers[name]
        packed = array("f" if buffer.dtype is torch.float32 else "d", values)  # type: ignore[union-attr]
        buffer.copy_(torch.frombuffer(packed, dtype=buffer.dtype))  # type: ignore[union-attr]
        written.append(packed.tolist())
    return written
