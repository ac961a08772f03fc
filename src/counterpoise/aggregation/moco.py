"""MoCo: averaged gradients and averaged weights against the bias of stochastic MGDA."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from .. import gradients
from .._state.float32 import state_dtype
from ..gradients import GradientList, TaskGradients
from ..registry import register
from ._running_mean import Memory
from .base import Aggregation, Options, Seen


@register(
    "moco",
    paper="Fernando et al. 2023",
    space="gradient",
    needs=("shared",),
    summary="MGDA on running means of the gradients, against its bias on small batches (memory: T × shared)",
)
class MoCo(Aggregation):
    r"""Multi-objective gradient correction (Fernando et al., ICLR 2023).

    .. math:: y_i \leftarrow y_i - \tfrac{\beta}{\sqrt k}\Bigl(y_i - \frac{L_i}{\|g_i\|} g_i\Bigr), \qquad
       \lambda \leftarrow \operatorname{softmax}\bigl(\lambda
       - \tfrac{\gamma}{\sqrt k} (Y Y^\top + \rho I)\lambda\bigr), \qquad d = Y^\top \lambda

    in step k, as the authors' code has it. The direction is made of past gradients, so `weights` is None.

    Example:
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = MoCo(2)
        >>> _ = balancer.backward([w[0], 5 * w[1]], shared=[w])
        >>> [round(x, 3) for x in balancer.lam.tolist()]
        [0.574, 0.426]
    """

    shards: ClassVar[bool] = False
    lam: Tensor
    step: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        beta: float = 0.5,
        gamma: float = 0.1,
        rho: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(tasks, **options)
        self.beta, self.gamma, self.rho = beta, gamma, rho
        self.memory = Memory()
        self.register_buffer("lam", torch.full(self.shape, 1 / len(self.tasks), dtype=state_dtype()))
        self.register_buffer("step", torch.zeros(self.batch_shape))

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[None, GradientList]:
        squares = self._squares(grads, seen)
        norms, sound = squares.sqrt(), self._sound(squares, seen)
        there = seen.present & (norms > 0)  # a task without a gradient keeps its mean
        unscale = 1.0 if seen.scale is None else 1 / seen.scale
        losses = (seen.losses * seen.weights).to(norms.dtype)
        factors = torch.where(there, losses / norms, 0.0) * unscale
        root = (self.step + 1).sqrt().unsqueeze(-1)
        rows = self.memory.follow(grads, factors, there * (self.beta / root), sound, seen.learning)
        products = self._summed(gradients.gram_matrix(rows, len(self.batch_shape)), grads).to(self.lam.dtype)
        change = (products @ self.lam.unsqueeze(-1)).squeeze(-1) + self.rho * self.lam
        lam = torch.softmax(self.lam - self.gamma / root * change, -1)
        some = seen.present.any(-1, keepdim=True)
        if seen.learning:
            self.lam.copy_(torch.where(sound & some, lam, self.lam))
            self.step.add_((sound & some)[..., 0])
        lam = torch.where(sound, lam, self._spoilt(seen)) * some  # a batch without labels moves nothing
        direction = gradients.combine(rows, lam if seen.scale is None else lam * seen.scale)
        return None, gradients.cast_like(grads.targets, direction)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.lam.fill_(1 / len(self.tasks))
        self.step.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}, gamma={self.gamma}, rho={self.rho}"
