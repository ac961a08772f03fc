"""Adam for parameters that a method updates itself."""

from typing import Any

import torch
from torch import Tensor

from ..functional import AdamState, adam
from .float32 import Float32State


class InternalAdam(Float32State):
    """Adam moments for a tensor (…, T), saved with the method's state and independent of the user's optimizer.

    Each replica counts its own steps: those in which at least one of its tasks is due.
    """

    step: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros(shape[:-1]))
        for name in ("mean", "square"):
            self.register_buffer(name, torch.zeros(shape))

    @torch.no_grad()
    def update(self, value: Tensor, gradient: Tensor, *, due: Tensor | None = None, **options: Any) -> None:
        """Update `value` in place by one step of Adam, except where `due` is False."""
        before = AdamState(self.step.unsqueeze(-1), self.mean, self.square)
        moved, after = adam(value, gradient, before, **options)
        for old, new in ((value, moved), (self.mean, after.mean), (self.square, after.square)):
            old.copy_(new if due is None else torch.where(due, new, old))
        self.step.add_(1 if due is None else due.any(-1))

    def limit_outliers(self, gradient: Tensor) -> Tensor:
        """Return the gradient, with entries above 1000 times their root mean square so far reduced to 3 times.

        The mean square forgets with rate 0.001: such an entry would stop the updates for tens of thousands of steps.
        """
        step = self.step.unsqueeze(-1)
        scale = (self.square / (1 - 0.999 ** step.clamp_min(1))).sqrt() + 1e-8
        outlier = (self.square > 0) & (gradient.abs() > 1000 * scale)
        return torch.where(outlier, gradient.sign() * 3 * scale, gradient)

    def clear(self) -> None:
        """Reset the moments and the step counts to zero."""
        for moment in self.buffers():
            moment.zero_()
