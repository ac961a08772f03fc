"""Running mean of the losses over several steps."""

import torch
from torch import Tensor

from .._state.float32 import Float32State
from ..functional._floats import FLOOR
from ..functional._outliers import UNUSABLE
from ._state_floats import read_floats, write_floats


class RunningMean(Float32State):
    """Mean loss per task, over the steps in which the task is present. The sums are buffers."""

    total: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(shape))
        self.register_buffer("count", torch.zeros(shape))

    def add(self, losses: Tensor) -> None:
        """Add the losses of one step; non-finite losses are skipped.

        Of a loss and a mean that differ by a factor of 1e19, only the smaller one counts.
        """
        mean = self.total / self.count  # NaN before the first loss
        present = torch.isfinite(losses) & ~((mean > FLOOR) & (losses.abs() > UNUSABLE * mean))
        restarts = (losses > FLOOR) & (mean.abs() > UNUSABLE * losses)
        for part in (self.total, self.count):
            part.masked_fill_(restarts, 0.0)
        self.total.add_(torch.where(present, losses, 0.0))
        self.count.add_(present)

    def add_floats(self, losses: list[float]) -> None:
        """Add finite losses in Python floats, as `add` does."""
        total, count = read_floats(self, "total"), read_floats(self, "count")
        for i, loss in enumerate(losses):
            if count[i]:
                mean = total[i] / count[i]
                if mean > FLOOR and abs(loss) > UNUSABLE * mean:
                    continue
                if loss > FLOOR and abs(mean) > UNUSABLE * loss:
                    total[i] = count[i] = 0.0
            total[i] += loss
            count[i] += 1.0
        write_floats(self, total=total, count=count)

    def pop(self) -> Tensor:
        """Return the mean, NaN for a task without any loss, and clear the sums."""
        mean = self.total / self.count
        self.clear()
        return mean

    def clear(self) -> None:
        self.total.zero_()
        self.count.zero_()
