"""GradDrop: only one sign is kept in each coordinate."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .._state.seeds import replica_seeds
from ..distributed import ProcessGroup
from ..functional import uniform
from ..gradients import GradientList, Passes, TaskGradients
from ..inputs import PerTask, per_task
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks

STREAMS_PER_SEED = 1 << 20  # one random stream per shared tensor; more than any network has


@register(
    "graddrop",
    paper="Chen et al. 2020",
    url="https://arxiv.org/abs/2010.06808",
    space="gradient",
    needs=("shared",),
    summary="keeps one sign in each coordinate, drawn in proportion to its share: noise against local conflicts",
)
class GradDrop(Aggregation):
    r"""Gradient sign dropout (Chen et al., NeurIPS 2020).

    In each coordinate only the gradients of one sign are kept, drawn in proportion to their share. Use it against
    conflicts in single coordinates; it also adds noise.

    .. math:: P = \frac12\Bigl(1 + \frac{\sum_i g_i}{\sum_i |g_i|}\Bigr), \qquad
       d = \sum_i g_i \odot \bigl([U < P][g_i > 0] + [U > P][g_i < 0]\bigr), \quad U \sim \mathcal U(0, 1)

    The direction is not a combination of task gradients, so `weights` is None. The draws depend on `seed` and a step
    counter alone.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        leak (tensor, mapping or sequence of float, optional): Fraction of each task's gradient that passes unmasked,
            in [0, 1], by name or in the order of `tasks`. `None` means 0 for every task. Default: `None`.
        seed (int or sequence of int, optional): Seed of the random stream. With `batch_shape`, one seed per replica;
            a single seed is incremented from replica to replica. Default: `0`.
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
        >>> balancer = cp.GradDrop(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # gradients (1, 0) and (−1, 1)
        >>> w.grad.abs(), balancer.weights
        (tensor([1., 1.]), None)

    References:
        Chen et al., Just Pick a Sign: Optimizing Deep Multitask Models with Gradient Sign Dropout.
        https://arxiv.org/abs/2010.06808
    """

    supports_sharding: ClassVar[bool] = False
    seed: Tensor
    counter: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        leak: PerTask | None = None,
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
        with torch.device("cpu"):  # Python numbers are read from it, whatever the default device
            leaks = per_task("leak", leak, 0.0, self.tasks, (len(self.tasks),), owner=self)
        if bool(((leaks < 0) | (leaks > 1)).any()):
            raise ValueError(f"GradDrop: leak is {leaks.tolist()}, expected numbers in [0, 1]")
        self._leaks: list[float] = leaks.tolist()
        self._factors: list[float] = [1.0] * len(self.tasks) if self.importance is None else self.importance.tolist()
        self.register_buffer("seed", replica_seeds(seed, self.batch_shape))
        self.register_buffer("counter", torch.zeros(self.batch_shape, dtype=torch.long))

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[None, GradientList]:
        leaks = [self._leaks[slot] for slot in grads.slots]
        factors = [self._factors[slot] for slot in grads.slots]
        columns = zip(*grads.rows, strict=True)
        direction = [self._drop(column, leaks, factors, position) for position, column in enumerate(columns)]
        if context.learning:
            self.counter.add_(context.present.any(-1))
        return None, direction

    def _drop(
        self, column: Sequence[Tensor | None], leaks: Sequence[float], factors: Sequence[float], position: int
    ) -> Tensor | None:
        """Combine the gradients of all tasks on one shared tensor."""
        rows = zip(column, leaks, factors, strict=True)
        given = [(grad, leak, factor) for grad, leak, factor in rows if grad is not None]
        if not given:
            return None
        up, down, passed, kept_up, kept_down = (torch.zeros_like(given[0][0]) for _ in range(5))
        for grad, leak, factor in given:
            positive, negative = grad.clamp_min(0.0), grad.clamp_max(0.0)
            up += positive
            down -= negative
            passed.add_(grad, alpha=factor * leak)
            kept_up.add_(positive, alpha=factor * (1 - leak))
            kept_down.add_(negative, alpha=factor * (1 - leak))
        drawn = self._draw(up, position)
        return passed + torch.where(drawn * (up + down) < up, kept_up, kept_down)  # U < P = up / (up + down)

    def _draw(self, like: Tensor, position: int) -> Tensor:
        """Draw uniform numbers for one shared tensor, from a separate stream for each replica and tensor."""
        count = like.shape[len(self.batch_shape) :].numel()
        return uniform(self.seed * STREAMS_PER_SEED + position, self.counter, count).view(like.shape)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.counter.zero_()
