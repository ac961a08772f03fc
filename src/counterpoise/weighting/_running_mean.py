"""Mean losses over many steps, as buffers."""

import torch
from torch import Tensor

from .._state.float32 import Float32State


class Mean(Float32State):
    """A running mean per task that skips the steps where the task is absent."""

    total: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(shape))
        self.register_buffer("count", torch.zeros(shape))

    def add(self, losses: Tensor) -> None:
        present = torch.isfinite(losses)
        self.total.add_(torch.where(present, losses, 0.0))
        self.count.add_(present)

    def take(self) -> Tensor:
        """The mean, NaN for a task that never came; the next one starts."""
        mean = self.total / self.count
        self.clear()
        return mean

    def clear(self) -> None:
        self.total.zero_()
        self.count.zero_()
