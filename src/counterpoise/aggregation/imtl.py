"""IMTL: the loss balance and the gradient balance together."""

from collections.abc import Mapping, Sequence

from ..distributed import ProcessGroup
from ..gradients import Passes
from ..inputs import PerTask, split_fixed_tasks
from ..registry import register
from ..weighting import IMTLL, Weighting
from .base import Heads, Ranks
from .imtl_g import IMTLG


@register(
    "imtl",
    paper="Liu et al. 2021",
    url="https://openreview.net/forum?id=IMPnRXEWpvr",
    space="gradient",
    needs=("shared",),
    summary="IMTL-L, then IMTL-G: heads with losses of one scale, shared parameters with equal projections",
)
class IMTL(IMTLG):
    r"""Impartial multi-task learning (Liu et al., ICLR 2021).

    `IMTLL` scales the losses, then `IMTLG` balances their gradients on the shared parameters. Use it when both the
    scales of the losses and their gradients need to be balanced.

    .. math:: J = \sum_i e^{s_i} L_i - s_i, \qquad \alpha \propto G^{-1} \sqrt{\operatorname{diag} G}

    The learned scales :math:`s` are parameters of this balancer. Pass them to the optimiser with `param_groups()`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` uses `IMTLL`. Default: `None`.
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
        `backward` adds the direction to `.grad` and returns the objective of the weighting, detached.

    Example:
        >>> import counterpoise as cp
        >>> cp.IMTL(2)
        IMTL(
          task_0, task_1
          (weighting): IMTLL(task_0, task_1)
        )

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
        if weighting is None:
            balanced, _, _ = split_fixed_tasks(tasks, fixed)
            weighting = IMTLL(balanced, batch_shape=batch_shape, strict=strict, process_group=process_group)
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
