"""IMTL-G: equal projections onto every task gradient."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import imtl_g_weights
from ..gradients import Passes
from ..inputs import PerTask
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks, Solver


@register(
    "imtl-g",
    paper="Liu et al. 2021",
    url="https://openreview.net/forum?id=IMPnRXEWpvr",
    space="gradient",
    needs=("shared",),
    summary="equal projections onto all gradients, in closed form: for tasks that should progress together",
)
class IMTLG(Aggregation):
    r"""Gradient balance of impartial multi-task learning (Liu et al., ICLR 2021).

    The direction has the same projection onto every normalised gradient :math:`g_i / \|g_i\|`. Use it for tasks that
    should progress together.

    .. math:: \alpha \propto G^{-1} \sqrt{\operatorname{diag} G}, \qquad \textstyle\sum_i \alpha_i = 1

    `counterpoise.functional.imtl_g` documents the fallback where the sum is not positive.

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
        >>> balancer = cp.IMTLG(2)
        >>> _ = balancer.backward([w[0], 3 * w[1]], shared=[w])
        >>> w.grad
        tensor([0.7500, 0.7500])

    References:
        Liu et al., Towards Impartial Multi-Task Learning. https://openreview.net/forum?id=IMPnRXEWpvr
    """

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
        return imtl_g_weights, {}
