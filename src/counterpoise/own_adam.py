"""The Adam that some methods keep for what they learn by themselves."""

from typing import Any

import torch
from torch import Tensor, nn

from .functional import AdamState, adam


class OwnAdam(nn.Module):
    """Moments for a tensor of the method; they are saved with it, and no optimiser of the user sees them."""

    step: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros(()))
        for name in ("mean", "square"):
            self.register_buffer(name, torch.zeros(shape))

    @torch.no_grad()
    def move(self, value: Tensor, gradient: Tensor, *, due: Tensor | None = None, **options: Any) -> None:
        """One step of `value`, in place; none where `due` is False."""
        state = AdamState(self.step, self.mean, self.square)
        moved, after = adam(value, gradient, state, **options)
        for old, new in zip((value, *state), (moved, *after), strict=True):
            old.copy_(new if due is None else torch.where(due if old.dim() else due.any(), new, old))

    def clear(self) -> None:
        for moment in self.buffers():
            moment.zero_()
