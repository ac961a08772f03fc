"""Fixed weights."""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from ..balancer import Common
from ..functional import Step, weighted_sum
from ..inputs import PerTask, per_task
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

    def __init__(self, tasks: int | Sequence[str], weights: PerTask | None = None, **common: Unpack[Common]) -> None:
        super().__init__(tasks, **common)
        self.register_buffer("weight", per_task("weights", weights, 1.0, self.tasks, self.shape))

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(self.weight, losses)
