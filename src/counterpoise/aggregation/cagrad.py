"""CAGrad: the best direction for the worst-off task, near the average gradient."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import cagrad_weights
from ..gradients import Passes
from ..inputs import PerTask, check_flags, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks, Solver


@register(
    "cagrad",
    paper="Liu et al. 2021",
    url="https://arxiv.org/abs/2110.14048",
    space="gradient",
    needs=("shared",),
    summary="near the average gradient, best for the worst-off task: for conflict, with the average loss as the goal",
)
class CAGrad(Aggregation):
    r"""Conflict-averse gradient descent (Liu et al., NeurIPS 2021).

    Among the directions near the average gradient, this is the one that improves the worst-off task most. Use it for
    conflicting tasks if the average loss is the goal.

    .. math:: \max_d \min_i \langle g_i, d\rangle \quad\text{s.t. } \|d - g_0\| \le \alpha \|g_0\|

    Here :math:`g_0` is the mean gradient. The solver is exact; see `counterpoise.functional.cagrad`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        alpha (float, optional): Radius :math:`\alpha` relative to the mean gradient, 0 or more. Default: `0.4`.
        rescale (bool, optional): Whether to divide the direction by :math:`1 + \alpha^2`, as the authors' code does
            by default; other implementations differ. Default: `True`.
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
        >>> balancer = cp.CAGrad(2, rescale=False)
        >>> _ = balancer.backward([w[0], w[1]], shared=[w])  # symmetric: (1 + α) times the average
        >>> w.grad
        tensor([0.7000, 0.7000])

    References:
        Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning. https://arxiv.org/abs/2110.14048
    """

    uses_preference: ClassVar[bool] = True

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        alpha: float = 0.4,
        rescale: bool = True,
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
        check_number(self, "alpha", alpha, least=0)
        self.alpha = alpha
        check_flags(self, rescale=rescale)
        self.rescale = rescale

    def _solver(self, context: StepContext, preference: Tensor | None) -> Solver:
        return cagrad_weights, {"alpha": self.alpha, "rescale": self.rescale, "preference": preference}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha}, rescale={self.rescale}"
