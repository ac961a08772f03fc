"""Nash-MTL: the bargaining solution."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import nash_weights
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks, Solver


@register(
    "nash-mtl",
    paper="Navon et al. 2022",
    url="https://arxiv.org/abs/2202.01017",
    space="gradient",
    needs=("shared",),
    summary="bargaining solution: equal relative gains, invariant to the scales of the losses",
)
class NashMTL(Aggregation):
    r"""Multi-task learning as a bargaining game (Navon et al., ICML 2022).

    All tasks gain equally in relative terms, whatever the scales of their losses. Use it when gradients conflict and
    their norms differ.

    .. math:: \alpha_i (G \alpha)_i = 1 \quad\text{for all } i

    The direction then has length √T, before `max_norm` is applied. The fixed point is computed exactly instead of by
    a sequence of convex programs. Where none exists (opposite gradients, Pareto stationarity) the weights are those of
    MGDA; see `counterpoise.functional.nash`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        max_norm (float, optional): Maximum norm of the direction. `None` means no limit. Default: `1.0`.
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
        >>> balancer = cp.NashMTL(2, max_norm=None)
        >>> _ = balancer.backward([w[0], 1000 * w[1]], shared=[w])
        >>> w.grad
        tensor([1., 1.])

    References:
        Navon et al., Multi-Task Learning as a Bargaining Game. https://arxiv.org/abs/2202.01017
    """

    uses_preference: ClassVar[bool] = True

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        max_norm: float | None = 1.0,
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
        check_number(self, "max_norm", max_norm, above=0, optional=True)
        self.max_norm = max_norm

    def _solver(self, context: StepContext, preference: Tensor | None) -> Solver:
        return _solve_with_norm, {"max_norm": self.max_norm, "preference": preference}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, max_norm={self.max_norm}"


def _solve_with_norm(gram: Tensor, *, max_norm: float | None, preference: Tensor | None) -> Tensor:
    weights = nash_weights(gram, preference=preference)
    if max_norm is None:
        return weights
    # ‖Σ α_i g_i‖² = αᵀGα. An absent task has weight 0, and its row may be NaN.
    products = torch.where(weights != 0, (gram.nan_to_num(0.0) @ weights.unsqueeze(-1)).squeeze(-1), 0.0)
    length = (weights * products).sum(-1, keepdim=True).clamp_min(0.0).sqrt()
    return weights * (max_norm / length.clamp_min(1e-30)).clamp_max(1.0)
