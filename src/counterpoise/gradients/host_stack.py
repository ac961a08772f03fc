"""Gradients of all tasks in the memory of the host, for networks in which they would take much of that of a device."""

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROWS_ON_DEVICE = 5  # rows that are on the device at once: two to read, three to store


class HostStack:
    """The gradients of all tasks at one place, (n, *shape), in pinned memory.

    Rows are copied on a stream of their own while others are computed, without synchronisation with the host. On a CPU,
    it is an ordinary tensor.
    """

    def __init__(self, tasks: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.device = device
        self.rows = torch.empty(tasks, *shape, dtype=dtype, pin_memory=on_gpu)
        self._copies = torch.cuda.Stream(device) if on_gpu else None
        self._stored: deque[tuple[Tensor, torch.cuda.Event]] = deque()  # rows that may not have been copied yet

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield one row after another, each of which may be used until the next is requested."""
        copies = self._copies
        if copies is None:
            for row in self.rows:
                yield row.to(self.device)
            return
        stream = torch.cuda.current_stream(self.device)
        buffers = [self.rows.new_empty(self.rows.shape[1:], device=self.device) for _ in range(2)]
        copies.wait_stream(stream)  # which may still use the memory of the buffers
        arrived = [self._fetch(0, buffers[0], copies)]
        used: list[torch.cuda.Event] = []
        try:
            for task in range(len(self)):
                if task + 1 < len(self):
                    if task > 0:
                        copies.wait_event(used[task - 1])  # of the row before, in the same buffer
                    arrived.append(self._fetch(task + 1, buffers[(task + 1) % 2], copies))
                stream.wait_event(arrived[task])
                yield buffers[task % 2]
                used.append(stream.record_event())
        finally:
            self.finish()

    def store(self, task: int, row: Tensor | None) -> None:
        """Write a row (1, *shape); None for zeros. The row of the same task must have been read before, if at all."""
        copies = self._copies
        row = self.rows.new_zeros(1, *self.rows.shape[1:], device=self.device) if row is None else row.contiguous()
        if copies is None:
            self.rows[task] = row[0]
            return
        stream = torch.cuda.current_stream(self.device)
        copies.wait_stream(stream)
        with torch.cuda.stream(copies):
            self.rows[task].copy_(row[0], non_blocking=True)
            self._stored.append((row, copies.record_event()))
        if len(self._stored) > 2:  # its memory is used again as soon as nothing refers to it
            stream.wait_event(self._stored.popleft()[1])

    def finish(self) -> None:
        """Let the computation wait for the rows that are being copied."""
        if self._copies is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._copies)
        self._stored.clear()

    def _fetch(self, task: int, buffer: Tensor, copies: torch.cuda.Stream) -> torch.cuda.Event:
        with torch.cuda.stream(copies):
            buffer.copy_(self.rows[task], non_blocking=True)
            event: torch.cuda.Event = copies.record_event()
        return event
