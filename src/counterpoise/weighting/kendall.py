"""Kendall: uncertainty weighting with unbounded log-variances."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..distributed import ProcessGroup
from ..functional import Step, _floats, kendall
from ..functional._floats import FloatStep
from ..inputs import PerTask
from ..registry import register
from ._state_floats import read_floats
from .base import Weighting


@register(
    "kendall",
    paper="Kendall et al. 2018",
    url="https://arxiv.org/abs/1705.07115",
    summary="learned log-variances: for losses within a factor of ten of each other",
)
class Kendall(Weighting):
    r"""Homoscedastic uncertainty weighting (Kendall, Gal and Cipolla, CVPR 2018).

    One log-variance per task is learned together with the network. Use it when the losses are within a factor of ten
    of each other: the log-variances start at 0 and need many steps to compensate for larger differences.

    .. math:: J = \sum_i \tfrac12 e^{-s_i} L_i + \tfrac12 s_i

    The objective **may be negative**, and this is not a bug: it is a negative log-likelihood up to a constant, and it
    decreases without bound as the losses approach 0. Judge training by the losses themselves.

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
        log_vars: The learned log-variances :math:`s`. Pass them to the optimiser with `param_groups()`.

    Returns:
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.Kendall(2)
        >>> balancer(torch.tensor([1.0, 3.0])).item()
        2.0

    References:
        Kendall et al., Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and Semantics.
        https://arxiv.org/abs/1705.07115
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
        self.log_vars = nn.Parameter(torch.zeros(self.shape))

    @property
    def learned(self) -> nn.Parameter:
        return self.log_vars

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _floats.kendall(read_floats(self, "log_vars"), losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return kendall(self.log_vars, losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.log_vars.zero_()
