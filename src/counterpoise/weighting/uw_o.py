"""UW-O: inverse losses, the optimum of uncertainty weighting for each batch."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, uw_o
from ..functional._floats import FloatStep
from ..inputs import PerTask, check_flags
from ..registry import register
from .base import Weighting


@register(
    "uw-o",
    paper="Kirchdorfer et al. 2024",
    url="https://arxiv.org/abs/2408.07985",
    summary="weights 1/L: invariant to loss scale from the first step, but follows the noise of every batch",
)
class UWO(Weighting):
    r"""Optimal uncertainty weighting (Kirchdorfer et al. 2024).

    The weights minimise Kendall's objective for the current batch. They are invariant to the scale of a loss from the
    first step, but they follow the noise of every batch.

    .. math:: J = \sum_i \frac{L_i}{\mathrm{sg}[L_i]}

    The value of the objective is always the number of tasks; only its gradient is informative. With `normalise=True`
    the weights sum to 1 (ℓ1-UW-O). These are also the weights of BPGS at its fixed point :math:`s_i = \log L_i`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        normalise (bool, optional): Whether the weights sum to 1. Default: `False`.
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

    Returns:
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.UWO(2)
        >>> balancer(torch.tensor([2.0, 4.0])).item(), balancer.weights.tolist()
        (2.0, [0.5, 0.25])

    References:
        Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning.
        https://arxiv.org/abs/2408.07985
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        normalise: bool = False,
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
        check_flags(self, normalise=normalise)
        self.normalise = normalise
        self.constant_value = not normalise

    @property
    def normalised(self) -> bool:
        return self.normalise

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _floats.uw_o(losses, normalise=self.normalise)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return uw_o(losses, normalise=self.normalise)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalise={self.normalise}"
