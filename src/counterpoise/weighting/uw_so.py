"""UW-SO: a softmax of inverse losses."""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from ..balancer import Common
from ..functional import Step, uw_so
from ..registry import register
from .base import Weighting


@register(
    "uw-so",
    paper="Kirchdorfer et al. 2024",
    summary="softmax of 1/L: the paper's UWSO; starves tasks with large losses",
)
class UWSO(Weighting):
    r"""Soft optimal uncertainty weighting.

    .. math:: w = \operatorname{softmax}\!\left(\frac{1}{\mathrm{sg}[L]} \Big/ \text{temperature}\right)

    Example:
        >>> balancer = UWSO(2)
        >>> _ = balancer(torch.tensor([2.0, 2.0]))
        >>> balancer.weights.tolist()
        [0.5, 0.5]
    """

    def __init__(self, tasks: int | Sequence[str], *, temperature: float = 2.0, **common: Unpack[Common]) -> None:
        super().__init__(tasks, **common)
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}, expected a positive number")
        self.temperature = temperature

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return uw_so(losses, temperature=self.temperature)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"
