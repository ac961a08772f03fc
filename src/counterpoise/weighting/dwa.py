"""DWA: weights from how fast each loss fell over the last two epochs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..functional import Step, dwa_weights, weighted_sum
from ..registry import register
from ._epochs import EpochWeighting


@register(
    "dwa",
    paper="Liu et al. 2019",
    needs=("epoch_end",),
    summary="slow tasks weigh more, by epoch means: similar scales, different speeds",
)
class DWA(EpochWeighting):
    r"""Dynamic weight average (Liu, Johns and Davison, CVPR 2019).

    .. math:: w = T \operatorname{softmax}\bigl((\bar L_{e-1} / \bar L_{e-2}) / \text{temperature}\bigr)

    on epoch means; ones during the first two epochs. Call `epoch_end()` after each epoch.

    Example:
        >>> balancer = DWA(2)
        >>> for mean in ([1.0, 1.0], [1.0, 0.5]):
        ...     _ = balancer(torch.tensor(mean))
        ...     balancer.epoch_end()
        >>> _ = balancer(torch.tensor([1.0, 1.0]))
        >>> bool(balancer.weights[0] > balancer.weights[1])
        True
    """

    last: Tensor
    before_last: Tensor

    def __init__(self, tasks: int | Sequence[str], *, temperature: float = 2.0, **options: Any) -> None:
        super().__init__(tasks, **options)
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}, expected a positive number")
        self.temperature = temperature
        self.register_buffer("last", torch.full(self.shape, torch.nan))
        self.register_buffer("before_last", torch.full(self.shape, torch.nan))

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        if learning:
            self.mean.add(losses)
        return weighted_sum(dwa_weights(self.last, self.before_last, temperature=self.temperature), losses)

    def turn(self, mean: Tensor) -> None:
        self.before_last.copy_(self.last)
        self.last.copy_(mean)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.last.fill_(torch.nan)
        self.before_last.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"
