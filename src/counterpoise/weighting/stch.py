"""STCH: a smooth maximum of the losses relative to where they stood after warm-up."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..functional import Step, log_sum, stch
from ..registry import register
from ._epochs import EpochWeighting


@register(
    "stch",
    paper="Lin et al. 2024",
    needs=("epoch_end",),
    summary="smooth maximum of relative losses: when the worst task matters most",
)
class STCH(EpochWeighting):
    r"""Smooth Tchebycheff scalarisation (Lin et al., ICML 2024).

    .. math:: J = \mu \log \sum_i e^{\ell_i / \mu}, \qquad \ell_i = \log (L_i / \text{nadir}_i)

    The nadir is the mean loss of the epoch after `warmup` epochs; until it is known the objective is
    :math:`\sum_i \log L_i`. Call `epoch_end()` after each epoch. The value may be negative.

    Example:
        >>> balancer = STCH(2, warmup=0)
        >>> _ = balancer(torch.tensor([1.0, 4.0]))
        >>> balancer.epoch_end()
        >>> _ = balancer(torch.tensor([1.0, 2.0]))
        >>> [round(w, 3) for w in balancer.weights.tolist()]
        [0.667, 0.167]
    """

    linear: ClassVar[bool] = False
    epoch: Tensor
    nadir: Tensor

    def __init__(self, tasks: int | Sequence[str], *, mu: float = 1.0, warmup: int = 4, **options: Any) -> None:
        super().__init__(tasks, **options)
        if not mu > 0:
            raise ValueError(f"mu is {mu}, expected a positive number")
        if warmup < 0:
            raise ValueError(f"warmup is {warmup}, expected a number of epochs, 0 or more")
        self.mu = mu
        self.warmup = warmup
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))
        self.register_buffer("nadir", torch.ones(self.shape))

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        if learning:
            self.mean.add(losses)
        warm = self.epoch <= self.warmup
        early, late = log_sum(losses), stch(losses, self.nadir, mu=self.mu)
        return Step(torch.where(warm, early.objective, late.objective), torch.where(warm, early.weights, late.weights))

    def turn(self, mean: Tensor) -> None:
        measured = (self.epoch == self.warmup) & torch.isfinite(mean)  # a task that never came keeps nadir 1
        self.nadir.copy_(torch.where(measured, mean, self.nadir))
        self.epoch += 1

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.epoch.zero_()
        self.nadir.fill_(1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mu={self.mu}, warmup={self.warmup}"
