"""Read and write the state of a method as Python floats, for one loss vector on the CPU.

Buffers are taken from the dictionaries of `nn.Module`, because its `__getattr__` takes longer than reading the numbers.
"""

from array import array
from functools import lru_cache
from threading import get_ident

import torch
from torch import Tensor, nn

LARGEST = 3e38  # just below the largest number of float32


def read_floats(module: nn.Module, name: str) -> list[float]:
    """Return the numbers of a buffer or parameter."""
    buffers = module._buffers
    values: list[float] = (buffers if name in buffers else module._parameters)[name].tolist()  # type: ignore[union-attr]
    return values


def read_integer(module: nn.Module, name: str) -> int:
    """Return the number of a buffer without dimensions."""
    return int(module._buffers[name].item())  # type: ignore[union-attr]


def write_integer(module: nn.Module, name: str, value: int) -> None:
    """Write the number of a buffer without dimensions; faster than `add_`."""
    module._buffers[name].fill_(value)  # type: ignore[union-attr]


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
        packed, staged = _staging(buffer.dtype, len(values), get_ident())  # type: ignore[union-attr]
        packed[:] = array(packed.typecode, values)
        buffer.copy_(staged)  # type: ignore[union-attr]
        written.append(packed.tolist())
    return written


@lru_cache(maxsize=64)
def _staging(dtype: torch.dtype, count: int, thread: int) -> tuple["array[float]", Tensor]:
    """Return an array and a tensor on its memory, for one thread. They are kept: creating a tensor is slow."""
    packed = array("f" if dtype is torch.float32 else "d", bytes(dtype.itemsize * count))
    return packed, torch.frombuffer(packed, dtype=dtype)
