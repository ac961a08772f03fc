"""DB-MTL: logarithms of the losses, and gradients of one length."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from .. import gradients
from ..gradients import GradientList, TaskGradients
from ..registry import register
from ..weighting import UWO
from ._running_mean import Memory
from .base import Aggregation, Options, Seen, weighted_by


@register(
    "db-mtl",
    paper="Lin et al. 2023",
    space="gradient",
    needs=("shared",),
    summary="log-losses and running gradients of one length: scale and dominance at once (memory: T × shared)",
)
class DBMTL(Aggregation):
    r"""Dual-balancing multi-task learning (Lin et al. 2023).

    .. math:: \hat g_i \leftarrow \beta_k \hat g_i + (1 - \beta_k) \nabla \log L_i, \qquad
       d = \max_j \|\hat g_j\| \sum_i \frac{\hat g_i}{\|\hat g_i\|}, \qquad \beta_k = \beta / k^{\sigma}

    in step k. The logarithm is the loss-space weighting 1/L (UW-O), which another `weighting` replaces. The direction
    is made of past gradients, so `weights` is None.

    Example:
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = DBMTL(2, beta=0.0)
        >>> _ = balancer.backward([w[0], 100 * w[1]], shared=[w])
        >>> w.grad
        tensor([1., 1.])
    """

    shards: ClassVar[bool] = False
    step: Tensor

    def __init__(
        self, tasks: int | Sequence[str], *, beta: float = 0.9, sigma: float = 0.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(tasks, **weighted_by(UWO, tasks, options))
        if not 0 <= beta < 1:
            raise ValueError(f"beta is {beta}, expected a number in [0, 1)")
        self.beta, self.sigma = beta, sigma
        self.memory = Memory()
        self.register_buffer("step", torch.zeros(self.batch_shape))

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[None, GradientList]:
        step = (self.step + 1).unsqueeze(-1)
        unscale = torch.ones_like(step) if seen.scale is None else 1 / seen.scale
        rates = seen.present * (1 - self.beta / step**self.sigma)  # an absent task keeps its mean
        sound = self._sound(self._squares(grads, seen), seen)
        rows = self.memory.follow(grads, unscale.expand(self.shape), rates, sound, seen.learning)
        some = seen.present.any(-1, keepdim=True)
        if seen.learning:
            self.step.add_((sound & some)[..., 0])
        norms = self._summed(gradients.squared_norms(rows, len(self.batch_shape)), grads).sqrt()
        weights = torch.where(norms > 0, norms.amax(-1, keepdim=True) / norms, 0.0)
        weights = torch.where(sound, weights, self._spoilt(seen)) * some  # a batch without labels moves nothing
        direction = gradients.combine(rows, weights if seen.scale is None else weights * seen.scale)
        return None, gradients.cast_like(grads.targets, direction)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.step.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}, sigma={self.sigma}"
