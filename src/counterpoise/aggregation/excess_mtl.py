"""ExcessMTL: weight where there is still something to gain."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from .. import distributed, gradients
from ..gradients import GradientList, TaskGradients, local_part
from ..registry import register
from ._running_mean import Memory
from .base import Aggregation, Options, Seen


@register(
    "excess-mtl",
    paper="He et al. 2024",
    space="gradient",
    needs=("shared",),
    summary="more weight for tasks far from their optimum, robust to label noise (memory: T × shared)",
)
class ExcessMTL(Aggregation):
    r"""Robust multi-task learning with excess risks (He et al., ICML 2024).

    .. math:: w_i \leftarrow w_i\, e^{\eta E_i / E_i(0)}, \quad \textstyle\sum_i w_i = T, \qquad
       E_i = \sum_p \frac{g_{ip}^2}{\sqrt{S_{ip} + 10^{-7}}}, \quad S_i \leftarrow S_i + g_i^2

    The excess risk :math:`E_i` is a second-order estimate with AdaGrad's diagonal for the Hessian; the first step gives
    its unit :math:`E_i(0)`. The weights multiply the losses, heads included (`heads="aggregated"`).

    Args:
        tasks: how many tasks, or their names.
        lr: η, the rate at which weights follow the excess risks.

    Example:
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = ExcessMTL(2)
        >>> _ = balancer.backward([w[0], 5 * w[1]], shared=[w])
        >>> balancer.weights
        tensor([1., 1.])
    """

    task_weights: Tensor
    first: Tensor

    def __init__(self, tasks: int | Sequence[str], *, lr: float = 1.0, **options: Unpack[Options]) -> None:
        options.setdefault("heads", "aggregated")
        super().__init__(tasks, **options)
        self.lr = lr
        self.memory = Memory()
        self.register_buffer("task_weights", torch.ones(self.shape))
        self.register_buffer("first", torch.full(self.shape, torch.nan))

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[Tensor, GradientList]:
        sound = self._sound(self._squares(grads, seen), seen)
        excess = self._excess(grads, seen, sound)
        known = ~torch.isnan(self.first)
        # Only the first step that has a task sets its unit, and then does not move its weight.
        growth = torch.where(known & seen.present, self.lr * excess / self.first.clamp_min(1e-30), 0.0)
        logs = (self.task_weights.log() + growth).masked_fill(~seen.present, -torch.inf)
        share = torch.softmax(logs, -1) * (len(self.tasks) - (self.task_weights * ~seen.present).sum(-1, keepdim=True))
        weights = torch.where(seen.present, share, self.task_weights)  # an absent task keeps its weight
        if seen.learning:
            self.task_weights.copy_(torch.where(sound, weights, self.task_weights))
            starts = ~known & seen.present & sound & (excess > 0)  # behind a head of zeros there is no unit yet
            self.first.copy_(torch.where(starts, excess, self.first))
        chosen = weights * seen.present
        return chosen, gradients.combine(grads.rows, gradients.select_weights(chosen, grads.slots), grads.stacks)

    def _excess(self, grads: TaskGradients, seen: Seen, sound: Tensor) -> Tensor:
        excess = torch.zeros_like(self.task_weights)
        unscale = 1.0 if seen.scale is None else 1 / seen.scale
        sums = self.memory.like(grads, len(self.tasks))
        for slot, row in zip(grads.slots, grads.rows, strict=True):
            for held, grad in zip(sums, row, strict=True):
                if grad is None:
                    continue
                pad = (*sound.shape[:-1], *(1,) * (grad.dim() - len(self.batch_shape)))
                squares = (local_part(grad).to(held.dtype) * unscale).square()
                squares = torch.where(sound[..., 0].view(pad), squares, 0.0) * (grads.partial or 1.0)
                total = held[slot].add_(squares) if seen.learning else held[slot] + squares
                parts = squares / (total + 1e-7).sqrt()
                excess[..., slot] += parts.flatten(len(self.batch_shape)).sum(-1) if parts.dim() else parts
        return excess if grads.partial is None else distributed.sum_over_ranks(excess, self.process_group)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.task_weights.fill_(1.0)
        self.first.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, lr={self.lr}"
