"""Fixed weights."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from ..balancer import Common
from ..functional import Step, weighted_sum
from ..registry import register
from .base import Weighting


@register("static", summary="fixed weights: the baseline, right when losses are of one scale")
class Static(Weighting):
    r"""A sum with fixed weights.

    .. math:: J = \sum_i w_i L_i

    Example:
        >>> balancer = Static(["seg", "depth"], weights=[1.0, 0.5])
        >>> balancer({"seg": torch.tensor(2.0), "depth": torch.tensor(4.0)})
        tensor(4.)
    """

    weight: Tensor

    def __init__(
        self, tasks: int | Sequence[str], weights: Sequence[float] | Tensor | None = None, **common: Unpack[Common]
    ) -> None:
        super().__init__(tasks, **common)
        given = torch.ones(self.shape) if weights is None else torch.as_tensor(weights, dtype=torch.get_default_dtype())
        if given.shape not in (self.shape, (len(self.tasks),)):
            raise ValueError(f"weights have shape {tuple(given.shape)}, expected {self.shape}: one for each task")
        self.register_buffer("weight", given.expand(self.shape).clone())

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(self.weight, losses)
