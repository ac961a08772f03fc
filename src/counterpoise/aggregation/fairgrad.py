"""FairGrad: α-fair improvement of all tasks."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import fairgrad_weights
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks, Solver


@register(
    "fairgrad",
    paper="Ban and Ji 2024",
    url="https://arxiv.org/abs/2402.15638",
    space="gradient",
    needs=("shared",),
    summary="α-fair gains: from the sum of gains (α → 0) over Nash (α = 1) to the worst gain (α → ∞)",
)
class FairGrad(Aggregation):
    r"""Fair resource allocation (Ban and Ji, ICML 2024).

    The direction maximises an α-fair utility of the gains of all tasks: their sum for α → 0, Nash-MTL for α = 1, the
    worst gain for α → ∞. Use it to choose between total progress and fairness.

    .. math:: G w = w^{-1/\alpha}

    The solver is Newton's method on a strictly convex problem. Where no solution exists (opposite gradients, Pareto
    stationarity) the weights are those of MGDA; see `counterpoise.functional.fairgrad`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        alpha (float, optional): Fairness :math:`\alpha`, positive. Default: `1.0`.
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
        >>> balancer = cp.FairGrad(2, alpha=2.0)
        >>> _ = balancer.backward([w[0], 4 * w[1]], shared=[w])  # w_i = ‖g_i‖^(−2α/(1+α))
        >>> [round(w, 4) for w in balancer.weights.tolist()]
        [1.0, 0.1575]

    References:
        Ban and Ji, Fair Resource Allocation in Multi-Task Learning. https://arxiv.org/abs/2402.15638
    """

    uses_preference: ClassVar[bool] = True

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        alpha: float = 1.0,
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
        check_number(self, "alpha", alpha, above=0)
        self.alpha = alpha

    def _solver(self, context: StepContext, preference: Tensor | None) -> Solver:
        return fairgrad_weights, {"alpha": self.alpha, "preference": preference}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha}"
