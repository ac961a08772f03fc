"""Gradients of all tasks in the memory of the host, for networks in which they would take much of that of a device."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROWS_ON_DEVICE = 2  # rows that are on the device at once: one to read, one to store


class HostStack:
    """The gradients of all tasks at one place, (n, *shape), in pinned memory; on a CPU, in an ordinary tensor.

    Rows are copied on the current stream, between the passes that use them, without synchronisation with the host.
    """

    def __init__(self, tasks: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self.rows = torch.empty(tasks, *shape, dtype=dtype, pin_memory=device.type == "cuda")

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield one row after another, each of which may be used until the next is requested."""
        row = self.rows.new_empty(self.rows.shape[1:], device=self.device)
        for stored in self.rows:
            yield row.copy_(stored, non_blocking=True)

    def store(self, task: int, row: Tensor | None) -> None:
        """Write a row (1, *shape); None for zeros."""
        if row is None:  # the host may still be read, so it is not filled directly
            row = self.rows.new_zeros(1, *self.rows.shape[1:], device=self.device)
        self.rows[task].copy_(row[0], non_blocking=True)
