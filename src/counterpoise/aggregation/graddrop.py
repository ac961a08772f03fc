"""GradDrop: for each coordinate one sign survives."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from .._state.seeds import replica_seeds
from ..functional import uniform
from ..gradients import GradientList, TaskGradients
from ..inputs import PerTask, per_task
from ..registry import register
from .base import Aggregation, Options, Seen

POSITIONS = 1 << 20  # streams of one seed: more tensors than any network shares


@register(
    "graddrop",
    paper="Chen et al. 2020",
    space="gradient",
    needs=("shared",),
    summary="keeps one sign in each coordinate, drawn by majority: noise against local conflicts",
)
class GradDrop(Aggregation):
    r"""Gradient sign dropout (Chen et al., NeurIPS 2020).

    .. math:: P = \frac12\Bigl(1 + \frac{\sum_i g_i}{\sum_i |g_i|}\Bigr), \qquad
       d = \sum_i g_i \odot \bigl([U < P][g_i > 0] + [U > P][g_i < 0]\bigr), \quad U \sim \mathcal U(0, 1)

    in each coordinate; `leak` is the part of each gradient that passes unmasked. The draws come from the
    stream of `seed`, one for each replica. The direction is not a combination of task gradients, so `weights` is None.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = GradDrop(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # gradients (1, 0) and (−1, 1)
        >>> w.grad.abs(), balancer.weights
        (tensor([1., 1.]), None)
    """

    shards: ClassVar[bool] = False
    seed: Tensor
    counter: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        leak: PerTask | None = None,
        seed: int | Sequence[int] = 0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(tasks, **options)
        with torch.device("cpu"):  # numbers of the host, wherever the balancer is made
            leaks = per_task("leak", leak, 0.0, self.tasks, (len(self.tasks),))
        if bool(((leaks < 0) | (leaks > 1)).any()):
            raise ValueError(f"leak is {leaks.tolist()}, expected numbers in [0, 1]")
        self._leaks: list[float] = leaks.tolist()
        self.register_buffer("seed", replica_seeds(seed, self.batch_shape))
        self.register_buffer("counter", torch.zeros(self.batch_shape, dtype=torch.long))

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[None, GradientList]:
        leaks = [self._leaks[slot] for slot in grads.slots]
        columns = zip(*grads.rows, strict=True)
        direction = [self._drop(column, leaks, position) for position, column in enumerate(columns)]
        if seen.learning:
            self.counter += seen.present.any(-1)
        return None, direction

    def _drop(self, column: Sequence[Tensor | None], leaks: Sequence[float], position: int) -> Tensor | None:
        given = [(grad, leak) for grad, leak in zip(column, leaks, strict=True) if grad is not None]
        if not given:
            return None
        up, down, passed, kept_up, kept_down = (torch.zeros_like(given[0][0]) for _ in range(5))
        for grad, leak in given:
            positive, negative = grad.clamp_min(0.0), grad.clamp_max(0.0)
            up += positive
            down -= negative
            passed.add_(grad, alpha=leak)
            kept_up.add_(positive, alpha=1 - leak)
            kept_down.add_(negative, alpha=1 - leak)
        drawn = self._draw(up, position)
        return passed + torch.where(drawn * (up + down) < up, kept_up, kept_down)  # U < P = up / (up + down)

    def _draw(self, like: Tensor, position: int) -> Tensor:
        """Uniform numbers for the gradient at a position of the row: a stream for each replica and position."""
        count = like.shape[len(self.batch_shape) :].numel()
        return uniform(self.seed * POSITIONS + position, self.counter, count).view(like.shape)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.counter.zero_()
