"""Base of the methods that learn from epoch means."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from ..balancer import Common
from ..functional import Step
from ._running_mean import Mean
from .base import Weighting


class EpochWeighting(Weighting):
    """Keeps the mean loss of the current epoch; `epoch_end` hands it to `turn`.

    A loop that never calls `epoch_end` would weigh all tasks alike for ever: after `max_epoch_steps` steps without it,
    that is an error.
    """

    def __init__(
        self, tasks: int | Sequence[str], *, max_epoch_steps: int | None = 100_000, **common: Unpack[Common]
    ) -> None:
        super().__init__(tasks, **common)
        self.max_epoch_steps = max_epoch_steps
        self.mean = Mean(self.shape)
        self._steps = 0

    def take_step(self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any) -> tuple[Step, Step]:
        counted = learning and not torch.compiler.is_compiling()  # a counter in the graph would recompile it
        if counted and self.max_epoch_steps is not None and self._steps >= self.max_epoch_steps:
            raise RuntimeError(
                f"{type(self).__name__} has seen {self._steps} steps without epoch_end(): "
                f"call it after each epoch (or raise max_epoch_steps)"
            )
        self._steps += counted
        return super().take_step(values, counts, learning, **needs)

    @torch.no_grad()
    def epoch_end(self) -> None:
        """Closes the epoch."""
        self._steps = 0
        self.turn(self.mean.take())

    @abstractmethod
    def turn(self, mean: Tensor) -> None:
        """Takes the mean losses of the epoch that ended, NaN for a task that never came."""

    def reset(self) -> None:
        super().reset()
        self._steps = 0
        self.mean.clear()
