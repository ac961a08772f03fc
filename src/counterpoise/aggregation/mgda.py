"""MGDA: the shortest common descent direction."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import mgda_weights
from ..gradients import Passes
from ..inputs import PerTask
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks, Solver

Normalise = Literal["none", "l2", "loss", "loss+"]


@register(
    "mgda",
    paper="Sener and Koltun 2018",
    url="https://arxiv.org/abs/1810.04650",
    space="gradient",
    needs=("shared",),
    summary="shortest vector of the convex hull: never conflicts with a task, but slow if one gradient is small",
)
class MGDA(Aggregation):
    r"""Multiple-gradient descent (Désidéri 2012; Sener and Koltun, NeurIPS 2018).

    The direction is the shortest vector of the convex hull of the task gradients. It conflicts with no task, but
    progress is slow if one gradient is small. With `features=` this is MGDA-UB.

    .. math:: \min_w \|\textstyle\sum_i w_i g_i\|^2 \quad\text{on the simplex}

    The solver is exact; see `counterpoise.functional.mgda`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        normalise (str, optional): Divisor of each gradient when the weights are computed: `"none"`, its norm
            (`"l2"`), its loss (`"loss"`), or both (`"loss+"`). Default: `"none"`.
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
        >>> balancer = cp.MGDA(2)
        >>> _ = balancer.backward([w[0], 2 * w[1]], shared=[w])  # gradients (1, 0) and (0, 2)
        >>> balancer.weights
        tensor([0.8000, 0.2000])

    References:
        Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization. https://arxiv.org/abs/1810.04650

        Désidéri, Multiple-Gradient Descent Algorithm (MGDA) for Multiobjective Optimization.
        https://doi.org/10.1016/j.crma.2012.03.014
    """

    compares_sizes: bool = True

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        normalise: Normalise = "none",
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
        if normalise not in get_args(Normalise):
            expected = ", ".join(map(repr, get_args(Normalise)))
            raise ValueError(f"normalise is {normalise!r}, expected one of {expected}")
        self.normalise = normalise
        self.requires_positive_losses = normalise in ("loss", "loss+")

    def _solver(self, context: StepContext, preference: Tensor | None) -> Solver:
        return _solve_normalised, {"losses": context.losses, "normalise": self.normalise}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalise={self.normalise}"


def _solve_normalised(gram: Tensor, *, losses: Tensor, normalise: Normalise) -> Tensor:
    divisors = torch.ones_like(losses, dtype=gram.dtype)
    if normalise in ("l2", "loss+"):
        divisors = divisors * gram.diagonal(dim1=-2, dim2=-1).sqrt()
    if normalise in ("loss", "loss+"):
        divisors = divisors * losses.to(gram.dtype)
    divisors = torch.where(divisors > 0, divisors, 1.0)
    return mgda_weights(gram / divisors.unsqueeze(-1) / divisors.unsqueeze(-2))
