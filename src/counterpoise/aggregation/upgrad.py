"""UPGrad: a direction that conflicts with no task."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import upgrad_weights
from ..gradients import Passes
from ..inputs import PerTask
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks, Solver


@register(
    "upgrad",
    paper="Quinton and Rey 2024",
    url="https://arxiv.org/abs/2406.16232",
    space="gradient",
    needs=("shared",),
    summary="projects each gradient onto the dual cone: no conflict with any task, gains in proportion to its gradient",
)
class UPGrad(Aggregation):
    r"""Unconflicting projection of gradients (Quinton and Rey 2024).

    Each gradient is projected onto the cone of directions that conflict with no task, and the projections are
    averaged. Use it when no task may get worse, and each should gain in proportion to its gradient.

    .. math:: d = \frac1T \sum_i \pi(g_i), \qquad \pi \text{ the projection on } \{d : \langle g_j, d\rangle \ge 0\
       \forall j\}

    The solver is exact; see `counterpoise.functional.upgrad`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all. `"lean"` never holds the gradients of all tasks. `"auto"` chooses by the
            number of tasks and the size of the shared network. Default: `"auto"`.
        ranks (str, optional): What is compared in a process group. `"exact"` averages the task gradients over ranks
            first, `"local"` compares those of each rank. Default: `"exact"`.
        importance (mapping or sequence of float, optional): Importance of each task, in place of the method's uniform
            preference. A mapping may leave out tasks, whose importance is 1. Default: `None`.
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
        >>> balancer = cp.UPGrad(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # gradients (1, 0) and (−1, 1)
        >>> w.grad
        tensor([0.2500, 0.7500])

    References:
        Quinton and Rey, Jacobian Descent for Multi-Objective Optimization. https://arxiv.org/abs/2406.16232
    """

    uses_preference: ClassVar[bool] = True

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
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

    def _solver(self, context: StepContext, preference: Tensor | None) -> Solver:
        return upgrad_weights, {"preference": preference}
