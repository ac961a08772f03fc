"""Trimmed mean: the largest and smallest values of each coordinate are left out."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import trimmed_mean
from ..gradients import GradientList, Passes, TaskGradients
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "trimmed-mean",
    paper="Yin et al. 2018",
    url="https://arxiv.org/abs/1803.01498",
    space="gradient",
    needs=("shared",),
    summary="mean without the extreme values of each coordinate: ignores outlying task gradients",
)
class TrimmedMean(Aggregation):
    r"""Coordinate-wise trimmed mean (Yin et al., ICML 2018).

    In each coordinate, the largest and the smallest values of the task gradients are left out, and the others are
    averaged. Use it if the gradients of some tasks may be arbitrary, for example because of corrupt labels.

    .. math:: d_k = \frac{1}{T - 2b} \sum_{i = b + 1}^{T - b} g_{(i)k}

    Here :math:`g_{(i)k}` is the i-th smallest value of coordinate k, and b is `trim`. The direction is not a
    combination of task gradients, so `weights` is None. With `importance`, the values that remain are multiplied by the
    factors of their tasks.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        trim (int, optional): Number b of values that are left out at each end. If fewer than 2b + 1 tasks are present,
            it is reduced to leave one or two values. Default: `1`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all; `"auto"` uses a vectorised pass for small shared networks with `features=`,
            and a loop otherwise. Default: `"auto"`.
        ranks (str, optional): What is compared in a process group. `"exact"` averages the task gradients over ranks
            first, `"local"` compares those of each rank. Default: `"exact"`.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Enables `memory` of the weighting. Without a weighting it has no effect.
            Default: `False`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Returns:
        `backward` adds the direction to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = cp.TrimmedMean(3)
        >>> _ = balancer.backward([w[0], 3 * w[0] + w[1], 90 * w[0] - 90 * w[1]], shared=[w])  # medians
        >>> w.grad, balancer.weights
        (tensor([3., 0.]), None)

    References:
        Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
        https://arxiv.org/abs/1803.01498
    """

    supports_sharding: ClassVar[bool] = False

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        trim: int = 1,
        weighting: Weighting | None = None,
        heads: Heads = "own",
        passes: Passes = "auto",
        ranks: Ranks = "exact",
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            weighting=weighting,
            heads=heads,
            passes=passes,
            ranks=ranks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "trim", trim, least=0, whole=True)
        self.trim = trim

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[None, GradientList]:
        by_slot = dict(zip(grads.slots, grads.rows, strict=True))
        rows = [by_slot.get(slot, [None] * len(grads.targets)) for slot in range(len(self.tasks))]
        present, scaled = context.present.movedim(-1, 0), context.scale is not None
        return None, [self._trimmed(column, present, scaled) for column in zip(*rows, strict=True)]

    def _trimmed(self, column: Sequence[Tensor | None], present: Tensor, scaled: bool) -> Tensor | None:
        """Combine the gradients of all tasks on one shared tensor. A missing gradient counts as zero.

        If the gradients are scaled, a value that is not finite is an overflow, which the scaler must see.
        """
        like = next((grad for grad in column if grad is not None), None)
        if like is None:
            return None
        rows = torch.stack([torch.zeros_like(like) if grad is None else grad for grad in column])
        if scaled:
            rows = torch.where(rows.isfinite(), rows, torch.nan)
        trim = min(self.trim, (len(rows) - 1) // 2)
        return trimmed_mean(rows, trim=trim, present=present, importance=self._preference(rows))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, trim={self.trim}"
