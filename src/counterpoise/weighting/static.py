"""Static: fixed weights."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, weighted_sum
from ..functional._floats import FloatStep
from ..inputs import PerTask, per_task
from ..registry import register
from ._state_floats import read_floats
from .base import Weighting


@register("static", summary="fixed weights: the baseline, enough when all losses have the same scale")
class Static(Weighting):
    r"""Sum of the losses with fixed weights.

    This is the usual baseline. Use it when the losses have similar scales, or when you know the right weights.

    .. math:: J = \sum_i w_i L_i

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        weights (tensor, mapping or sequence of float, optional): One weight per task, by name or in the order of
            `tasks`. `None` means 1 for every task. Default: `None`.
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
        >>> balancer = cp.Static(["seg", "depth"], weights=[1.0, 0.5])
        >>> balancer({"seg": torch.tensor(2.0), "depth": torch.tensor(4.0)})
        tensor(4.)
    """

    requires_positive_losses: bool = False
    adaptive: ClassVar[bool] = False
    has_state: ClassVar[bool] = False
    raises_weights: ClassVar[bool] = True
    weight: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        weights: PerTask | None = None,
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
        self.register_buffer("weight", per_task("weights", weights, 1.0, self.tasks, self.shape, owner=self))

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _floats.weighted_sum(read_floats(self, "weight"), losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(self.weight, losses)
