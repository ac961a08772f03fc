"""Kendall + ℓ1: learned log-variances, normalised weights, split objectives."""

from torch import Tensor

from ..functional import Step, kendall_l1
from ..registry import register
from .kendall import Kendall


@register(
    "kendall-l1",
    paper="Subedi 2026, normalisation ablation",
    summary="Kendall with weights that sum to 1: what normalisation alone buys",
)
class KendallL1(Kendall):
    r"""Kendall's log-variances, but the network gets normalised, detached weights.

    .. math:: J = \sum_i \mathrm{sg}[\alpha_i] L_i, \qquad \alpha = e^{-s} / \textstyle\sum_j e^{-s_j}

    while :math:`s` receives Kendall's own gradient :math:`\tfrac12 (1 - e^{-s_i} L_i)`.

    Example:
        >>> balancer = KendallL1(2)
        >>> balancer(torch.tensor([1.0, 3.0])).item()
        2.0
    """

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return kendall_l1(self.log_vars, losses)
