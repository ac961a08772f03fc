"""IMTL-L: learned scales that bring every loss to 1."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..distributed import ProcessGroup
from ..functional import Step, imtl_l
from ..registry import register
from .base import Weighting


@register(
    "imtl-l",
    paper="Liu et al. 2021",
    url="https://openreview.net/forum?id=IMPnRXEWpvr",
    summary="learned scales that bring every loss to 1: Kendall's rule with twice its gradient",
)
class IMTLL(Weighting):
    r"""Loss balance of impartial multi-task learning (Liu et al., ICLR 2021).

    One log-scale per task is learned together with the network, so that all scaled losses approach 1. The rule is
    that of `Kendall` with twice its gradient, from a different derivation.

    .. math:: J = \sum_i e^{s_i} L_i - s_i

    The log-scales :math:`s_i` start at 0. The objective may be negative.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent. This check waits for the device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Attributes:
        log_scales: The learned log-scales. Pass them to the optimiser with `param_groups()`.

    Returns:
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.IMTLL(2)
        >>> balancer(torch.tensor([1.0, 3.0])).item()
        4.0

    References:
        Liu et al., Towards Impartial Multi-Task Learning. https://openreview.net/forum?id=IMPnRXEWpvr
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(tasks, batch_shape=batch_shape, strict=strict, process_group=process_group)
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
