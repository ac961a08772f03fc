"""Kendall: uncertainty weighting with unbounded log-variances."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from ..balancer import Common
from ..functional import Step, kendall
from ..registry import register
from .base import Weighting


@register("kendall", paper="Kendall et al. 2018", summary="learned log-variances: losses within a decade of each other")
class Kendall(Weighting):
    r"""Homoscedastic uncertainty weighting (Kendall, Gal and Cipolla, CVPR 2018).

    .. math:: J = \sum_i \tfrac12 e^{-s_i} L_i + \tfrac12 s_i

    with one learned log-variance :math:`s_i` per task, 0 at the start. The value **may be negative**: it is a negative
    log-likelihood up to a constant, and falls without bound as losses approach 0. That is not a bug; judge training
    by the losses themselves.

    Example:
        >>> balancer = Kendall(2)
        >>> balancer(torch.tensor([1.0, 3.0])).item()
        2.0
    """

    def __init__(self, tasks: int | Sequence[str], **common: Unpack[Common]) -> None:
        super().__init__(tasks, **common)
        self.log_vars = nn.Parameter(torch.zeros(self.shape))

    @property
    def learned(self) -> nn.Parameter:
        return self.log_vars

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return kendall(self.log_vars, losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.log_vars.zero_()
