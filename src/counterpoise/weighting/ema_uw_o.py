"""EMA-UW-O: inverse smoothed losses."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from ..balancer import Common
from ..functional import Step, uw_o
from ..functional._masking import result_dtype
from ..registry import register
from .base import Weighting


@register("ema-uw-o", summary="1/EMA(L), normalised: UW-O with the noise averaged out")
class EMAUWO(Weighting):
    r"""Inverse smoothed losses, normalised.

    .. math:: w_i \propto 1 / \bar L_i, \qquad \bar L_i \leftarrow \beta \bar L_i + (1 - \beta)\,\mathrm{sg}[L_i]

    The first loss of a task starts its average. It separates two explanations of BPGS: does learning θ matter, or is
    it the smoothing?

    Example:
        >>> balancer = EMAUWO(2)
        >>> _ = balancer(torch.tensor([1.0, 3.0]))
        >>> balancer.weights.tolist()
        [0.75, 0.25]
    """

    average: Tensor

    def __init__(self, tasks: int | Sequence[str], *, beta: float = 0.9, **common: Unpack[Common]) -> None:
        super().__init__(tasks, **common)
        if not 0 <= beta < 1:
            raise ValueError(f"beta is {beta}, expected a number in [0, 1)")
        self.beta = beta
        self.register_buffer("average", torch.full(self.shape, torch.nan))

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        current = losses.to(result_dtype(losses))
        moved = torch.where(
            torch.isnan(self.average), current, torch.lerp(current, self.average.to(current), self.beta)
        )
        average = torch.where(torch.isfinite(losses), moved, self.average.to(current))
        if learning:
            self.average.copy_(average)
        return uw_o(losses, torch.nan_to_num(average, 1.0), normalise=True)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.average.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}"
