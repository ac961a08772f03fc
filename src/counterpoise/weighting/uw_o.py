"""UW-O: inverse losses, the optimum of uncertainty weighting without learning."""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from ..balancer import Common
from ..functional import Step, uw_o
from ..registry import register
from .base import Weighting


@register("uw-o", paper="Kirchdorfer et al. 2024", summary="1/L: scale-free at once, but follows every batch's noise")
class UWO(Weighting):
    r"""Optimal uncertainty weighting: the weights that minimise Kendall's objective for this batch.

    .. math:: J = \sum_i \frac{L_i}{\mathrm{sg}[L_i]}

    Its value is the number of tasks: only its gradient means something. With `normalise=True` the weights sum to 1
    (ℓ1-UW-O); these are the weights at BPGS's fixed point :math:`s_i = \log L_i`.

    Example:
        >>> balancer = UWO(2)
        >>> balancer(torch.tensor([2.0, 4.0])).item(), balancer.weights.tolist()
        (2.0, [0.5, 0.25])
    """

    def __init__(self, tasks: int | Sequence[str], *, normalise: bool = False, **common: Unpack[Common]) -> None:
        super().__init__(tasks, **common)
        self.normalise = normalise

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return uw_o(losses, normalise=self.normalise)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalise={self.normalise}"
