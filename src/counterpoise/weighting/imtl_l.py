"""IMTL-L: learned scales that bring every loss to 1."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from ..balancer import Common
from ..functional import Step, imtl_l
from ..registry import register
from .base import Weighting


@register(
    "imtl-l",
    paper="Liu et al. 2021",
    summary="learned scales: Kendall's rule from another derivation, with twice its gradient",
)
class IMTLL(Weighting):
    r"""The loss balance of impartial multi-task learning (Liu et al., ICLR 2021).

    .. math:: J = \sum_i e^{s_i} L_i - s_i

    with one learned log-scale :math:`s_i` per task, 0 at the start. The value may be negative.

    Example:
        >>> balancer = IMTLL(2)
        >>> balancer(torch.tensor([1.0, 3.0])).item()
        4.0
    """

    def __init__(self, tasks: int | Sequence[str], **common: Unpack[Common]) -> None:
        super().__init__(tasks, **common)
        self.log_scales = nn.Parameter(torch.zeros(self.shape))

    @property
    def learned(self) -> nn.Parameter:
        return self.log_scales

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return imtl_l(self.log_scales, losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.log_scales.zero_()
