"""Base class of the methods that use mean losses per epoch."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional._floats import FloatStep
from ..inputs import PerTask, check_number
from ._running_mean import RunningMean
from .base import Weighting

LONG_EPOCH = 10_000  # steps without epoch_end after which it may have been forgotten


class EpochWeighting(Weighting):
    """Base class that keeps the mean losses of the current epoch and passes them to `update_from_epoch`.

    Without calls of `epoch_end` the weights would never change. A warning is issued after `LONG_EPOCH` steps without
    it, and an error is raised after `max_epoch_steps`.
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        max_epoch_steps: int | None = 100_000,
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        max_ratio: float | None = None,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "max_epoch_steps", max_epoch_steps, least=1, whole=True, optional=True)
        self.max_epoch_steps = max_epoch_steps
        self.mean = RunningMean(self.shape)
        self._steps = 0

    def count_step(self) -> None:
        if self.max_epoch_steps is not None and self._steps >= self.max_epoch_steps:
            raise RuntimeError(
                f"{type(self).__name__} has seen {self._steps} steps without epoch_end(): "
                f"call it after each epoch (or raise max_epoch_steps)"
            )
        if self._steps == LONG_EPOCH and self.max_epoch_steps is not None:
            self._checks.warn(
                "epoch end",
                f"{type(self).__name__} has seen {LONG_EPOCH:,} steps without epoch_end(), during which its weights do "
                f"not change: call it after each epoch",
            )
        vars(self)["_steps"] += 1  # assigning an attribute of nn.Module is slow

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep | None:
        step = self.weigh_epoch_floats(losses)
        if step is not None and learning:
            self.count_step()
            self.mean.add_floats(losses)
        return step

    def weigh_epoch_floats(self, losses: list[float]) -> FloatStep | None:
        """Compute one step from finite losses in Python floats, as `weigh` does. None leaves the step to `weigh`."""
        return None

    def observe(self, losses: Tensor) -> None:
        self.mean.add(losses)

    @torch.no_grad()
    def epoch_end(self) -> None:
        """Update the method from the mean losses of the epoch and start the next one.

        A call without a training step since the last one changes nothing.
        """
        if self._steps == 0 and not bool(self.mean.count.any()):  # compiled and loaded steps are in the sums only
            return
        self._steps = 0
        self.update_from_epoch(self.mean.pop())

    @abstractmethod
    def update_from_epoch(self, mean: Tensor) -> None:
        """Update the state from the mean losses of the last epoch, NaN for a task without any loss."""

    def reset(self) -> None:
        super().reset()
        self._steps = 0
        self.mean.clear()
