"""PCGrad: each gradient is projected off the gradients it conflicts with."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._state.seeds import replica_seeds
from ..distributed import ProcessGroup
from ..functional import pcgrad_weights, uniform
from ..functional._replay import replay_on_cuda
from ..gradients import Passes
from ..inputs import PerTask
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks, Solver


@register(
    "pcgrad",
    paper="Yu et al. 2020",
    url="https://arxiv.org/abs/2001.06782",
    space="gradient",
    needs=("shared",),
    summary="projects each gradient off those it conflicts with: for conflicting tasks of similar scale",
)
class PCGrad(Aggregation):
    r"""Projecting conflicting gradients (Yu et al., NeurIPS 2020).

    Each gradient loses its component along the gradients that it conflicts with. Use it for conflicting tasks of
    similar scale; combine it with a `weighting` if the scales differ.

    .. math:: \hat g_i \leftarrow \hat g_i - \frac{\hat g_i \cdot g_j}{\|g_j\|^2} g_j
       \quad\text{if } \hat g_i \cdot g_j < 0

    For each i this starts from :math:`g_i` and visits the other tasks j in random order. The direction is the **sum**
    of the :math:`\hat g_i`, as in the paper's code; one popular port averages them. Everything is computed from the
    Gram matrix. The orders depend on `seed` and a step counter alone: they are the same on every device and rank, and
    continue after a checkpoint is loaded.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        seed (int or sequence of int, optional): Seed of the random stream. With `batch_shape`, one seed per replica;
            a single seed is incremented from replica to replica. Default: `0`.
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
        >>> balancer = cp.PCGrad(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # gradients (1, 0) and (−1, 1)
        >>> w.grad
        tensor([0.5000, 1.5000])

    References:
        Yu et al., Gradient Surgery for Multi-Task Learning. https://arxiv.org/abs/2001.06782
    """

    seed: Tensor
    counter: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        seed: int | Sequence[int] = 0,
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
        self.register_buffer("seed", replica_seeds(seed, self.batch_shape))
        self.register_buffer("counter", torch.zeros(self.batch_shape, dtype=torch.long))

    def _solver(self, context: StepContext, preference: Tensor | None) -> Solver:
        return _solve_in_random_order, {"seed": self.seed, "counter": self.counter}

    def _end_solve(self, context: StepContext) -> None:
        self._count_draw(context)

    def _draw_order(self, context: StepContext) -> Tensor:
        """Return the order in which each task visits the others, (…, T, T)."""
        order = _random_order(self.seed, self.counter, len(self.tasks))
        self._count_draw(context)
        return order

    def _count_draw(self, context: StepContext) -> None:
        if context.learning:
            self.counter.add_(context.present.any(-1))  # an assignment to a buffer takes longer than the addition

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.counter.zero_()


@replay_on_cuda
def _solve_in_random_order(gram: Tensor, seed: Tensor, counter: Tensor) -> Tensor:
    return pcgrad_weights(gram, _random_order(seed, counter, gram.shape[-1]))


def _random_order(seed: Tensor, counter: Tensor, tasks: int) -> Tensor:
    return uniform(seed, counter, tasks * tasks).view(*seed.shape, tasks, tasks).argsort(-1)
