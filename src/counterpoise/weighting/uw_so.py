"""UW-SO: softmax of the inverse losses."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, uw_so
from ..functional._floats import FloatStep
from ..inputs import PerTask, check_number
from ..registry import register
from .base import Weighting


@register(
    "uw-so",
    paper="Kirchdorfer et al. 2024",
    url="https://arxiv.org/abs/2408.07985",
    summary="softmax of 1/L: smoother than UW-O, but tasks with large losses get almost no weight",
)
class UWSO(Weighting):
    r"""Soft optimal uncertainty weighting (Kirchdorfer et al. 2024).

    The softmax bounds the weights of `UWO`. Use it when the losses have similar scales: tasks with large losses get
    almost no weight.

    .. math:: w = \operatorname{softmax}\!\left(\frac{1}{\mathrm{sg}[L]} \Big/ \text{temperature}\right)

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        temperature (float, optional): Temperature of the softmax; higher values give more equal weights.
            Default: `2.0`.
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
        Calling the balancer returns the weighted sum, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.UWSO(2)
        >>> _ = balancer(torch.tensor([2.0, 2.0]))
        >>> balancer.weights.tolist()
        [0.5, 0.5]

    References:
        Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning.
        https://arxiv.org/abs/2408.07985
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        temperature: float = 2.0,
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
        check_number(self, "temperature", temperature, above=0)
        self.temperature = temperature

    @property
    def normalised(self) -> bool:
        return True

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _floats.uw_so(losses, temperature=self.temperature)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return uw_so(losses, temperature=self.temperature)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"
