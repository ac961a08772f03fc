"""IMTL-L: learned scales that bring every loss to 1."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..distributed import ProcessGroup
from ..functional import Step, _floats, imtl_l
from ..functional._floats import FloatStep
from ..inputs import PerTask
from ..registry import register
from ._state_floats import read_floats
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
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Whether absent tasks enter the statistics with a running mean of their last losses, for
            loops in which a batch does not have all tasks. Default: `False`.
        max_ratio (float, optional): Bound on the ratio of the largest to the smallest weight, before `importance`.
            Beyond it, the weights are no longer invariant to the scale of a loss. Default: `None`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
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
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        max_ratio: float | None = None,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        self.log_scales = nn.Parameter(torch.zeros(self.shape))

    @property
    def learned(self) -> nn.Parameter:
        return self.log_scales

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _floats.imtl_l(read_floats(self, "log_scales"), losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return imtl_l(self.log_scales, losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.log_scales.zero_()
