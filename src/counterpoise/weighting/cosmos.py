"""COSMOS: weighted sum with a reward for losses in proportion to a preference."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _float_rules, cosmos
from ..functional._floats import FloatStep
from ..inputs import PerTask, check_number
from ..registry import register
from ._preference import PreferenceWeighting
from ._state_floats import read_floats


@register(
    "cosmos",
    paper="Ruchte and Grabocka 2021",
    url="https://arxiv.org/abs/2103.13392",
    summary="weighted sum that rewards losses in proportion to a preference: to choose a point of the Pareto front",
)
class COSMOS(PreferenceWeighting):
    r"""Weighted sum with a penalty on the angle to a preference vector (Ruchte and Grabocka, ICDM 2021).

    Use it to choose a point of the Pareto front. The losses should have similar scales.

    .. math:: J = \sum_i p_i L_i - \lambda \cos(p, L)

    A weight is negative where a loss is so small that increasing it aligns the losses with the preference. With
    `max_ratio`, such weights are raised and stay positive. The paper draws the preference from a Dirichlet distribution
    in every step, `balancer.preference.copy_(sample)`, and passes it to the network as an additional input.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        preference (tensor, mapping or sequence of float, optional): Preference :math:`p_i` of each task, by name or in
            the order of `tasks`. `None` means 1 for every task. Default: `None`.
        penalty (float, optional): Factor :math:`\lambda` of the cosine. The paper uses 0.01 to 8, depending on the
            data. Default: `1.0`.
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
        >>> balancer = cp.COSMOS(2, preference=[1.0, 2.0])
        >>> round(balancer(torch.tensor([3.0, 4.0])).item(), 3)
        10.016

    References:
        Ruchte and Grabocka, Scalable Pareto Front Approximation for Deep Multi-Objective Learning.
        https://arxiv.org/abs/2103.13392
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        preference: PerTask | None = None,
        penalty: float = 1.0,
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
            preference=preference,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "penalty", penalty, least=0)
        self.penalty = penalty

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _float_rules.cosmos(losses, read_floats(self, "preference"), penalty=self.penalty)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return cosmos(losses, self.preference, penalty=self.penalty)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, penalty={self.penalty}"
