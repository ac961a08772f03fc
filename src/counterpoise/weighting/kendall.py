"""Kendall: uncertainty weighting with unbounded log-variances."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..distributed import ProcessGroup
from ..functional import Step, kendall
from ..registry import register
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
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent. This check waits for the device in every step. Default: `False`.
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
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(tasks, batch_shape=batch_shape, strict=strict, process_group=process_group)
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
