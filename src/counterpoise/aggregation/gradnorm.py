"""GradNorm: learned weights that let all tasks train at one rate."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from .._state.adam import InternalAdam
from ..functional import gradnorm_gradient
from ..registry import register
from .base import Aggregation, Options, Seen


@register(
    "gradnorm",
    paper="Chen et al. 2018",
    space="gradient",
    needs=("shared",),
    summary="learned weights that equalise gradient norms, more for tasks that lag behind",
)
class GradNorm(Aggregation):
    r"""Gradient normalisation (Chen et al., ICML 2018).

    .. math:: \min_w \sum_i \bigl| w_i n_i - \mathrm{sg}[\bar n\, r_i^\alpha] \bigr|, \qquad
       r_i = \frac{L_i / L_i(0)}{\operatorname{mean}_j L_j / L_j(0)}

    with :math:`n_i = \|\nabla L_i\|` and :math:`\bar n` the mean of the :math:`w_i n_i`. The derivative in
    :math:`w_i` is :math:`n_i \operatorname{sign}(\cdot)`, so no second backward is needed. The weights, positive with
    :math:`\sum_i w_i = T`, multiply the losses, heads included; an Adam of their own moves them. The paper takes norms
    on the last shared layer: pass its parameters as `shared=`. One popular package has the sign of α wrong.

    Example:
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = GradNorm(2)
        >>> _ = balancer.backward([w[0], 5 * w[1]], shared=[w])
        >>> [round(x, 3) for x in balancer.task_weights.tolist()]  # less for the longer gradient
        [1.025, 0.975]
    """

    task_weights: Tensor
    first: Tensor

    def __init__(
        self, tasks: int | Sequence[str], *, alpha: float = 1.5, lr: float = 0.025, **options: Unpack[Options]
    ) -> None:
        super().__init__(tasks, **options)
        self.alpha, self.lr = alpha, lr
        self.register_buffer("task_weights", torch.ones(self.shape))
        self.register_buffer("first", torch.full(self.shape, torch.nan))
        self.adam = InternalAdam(self.shape)

    def multipliers(self, losses: Tensor, learning: bool) -> Tensor:
        return self.task_weights.clone()

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        if seen.learning:
            self._learn(gram.diagonal(dim1=-2, dim2=-1).sqrt(), self._counts(gram, seen) & seen.present, seen)
        return seen.present.to(gram.dtype)

    def _learn(self, norms: Tensor, due: Tensor, seen: Seen) -> None:
        losses = seen.losses.to(self.first.dtype)
        self.first.copy_(torch.where(torch.isnan(self.first) & seen.present & (losses != 0), losses, self.first))
        gradient = gradnorm_gradient(self.task_weights, norms, losses, self.first, alpha=self.alpha)
        self.adam.update(self.task_weights, gradient, due=due, lr=self.lr)
        self.task_weights.clamp_min_(1e-3)
        self.task_weights.mul_(len(self.tasks) / self.task_weights.sum(-1, keepdim=True))

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.task_weights.fill_(1.0)
        self.first.fill_(torch.nan)
        self.adam.clear()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha}, lr={self.lr}"
