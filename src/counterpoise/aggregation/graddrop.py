"""GradDrop: for each coordinate one sign survives."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from ..gradients import Row, TaskGradients
from ..losses import PerTask, per_task
from ..registry import register
from .base import Aggregation, Options, Seen


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

    in each coordinate; `leak` is the part of each gradient that passes unmasked. The draws come from the stream of
    `seed`. The direction is not a combination of task gradients, so `weights` is None.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = GradDrop(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # gradients (1, 0) and (−1, 1)
        >>> w.grad.abs(), balancer.weights
        (tensor([1., 1.]), None)
    """

    leak: Tensor

    def __init__(
        self, tasks: int | Sequence[str], *, leak: PerTask | None = None, seed: int = 0, **options: Unpack[Options]
    ) -> None:
        super().__init__(tasks, **options)
        leaks = per_task("leak", leak, 0.0, self.tasks, (len(self.tasks),))
        if bool(((leaks < 0) | (leaks > 1)).any()):
            raise ValueError(f"leak is {leaks.tolist()}, expected numbers in [0, 1]")
        self._leaks: list[float] = leaks.tolist()
        self.seed = seed
        self._draws = 0

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[None, Row]:
        first = next(grad for row in grads.rows for grad in row if grad is not None)
        # One generator for each step, so that the number of steps is its whole state.
        generator = torch.Generator(first.device).manual_seed(hash((self.seed, self._draws)) & (1 << 63) - 1)
        if seen.learning:
            self._draws += 1
        leaks = [self._leaks[slot] for slot in grads.slots]
        return None, [self._drop(column, leaks, generator) for column in zip(*grads.rows, strict=True)]

    @staticmethod
    def _drop(column: Sequence[Tensor | None], leaks: Sequence[float], generator: torch.Generator) -> Tensor | None:
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
        drawn = torch.rand(up.shape, generator=generator, device=up.device, dtype=up.dtype)
        return passed + torch.where(drawn * (up + down) < up, kept_up, kept_down)  # U < P = up / (up + down)

    def get_extra_state(self) -> dict[str, int]:
        return {"draws": self._draws}

    def set_extra_state(self, state: Any) -> None:
        self._draws = int(state["draws"])

    def reset(self) -> None:
        super().reset()
        self._draws = 0

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, seed={self.seed}"
