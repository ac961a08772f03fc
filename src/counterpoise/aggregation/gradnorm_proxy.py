"""GradNormProxy: weights against squared gradient norms, renewed now and then."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from ..functional import gradnorm_proxy_weights
from ..registry import register
from .base import Aggregation, Options, Seen


@register(
    "gradnorm-proxy",
    paper="Subedi 2026, baseline",
    space="gradient",
    needs=("shared",),
    summary="1/‖g‖², renewed every 100 steps: what norms alone buy, at hardly any cost",
)
class GradNormProxy(Aggregation):
    r"""The GradNorm baseline of the BPGS paper, which is cruder than GradNorm.

    .. math:: w_i = T \frac{1 / e_i}{\sum_j 1 / e_j}, \qquad e_i = \max(\|g_i\|^2, 10^{-4})

    at every `every`-th step, from the task gradients of that step; 1 before the first. The weights multiply the losses,
    heads included. All other steps are plain backward passes.

    Example:
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = GradNormProxy(2, every=1)
        >>> _ = balancer.backward([w[0], 3 * w[1]], shared=[w])
        >>> balancer.weights
        tensor([1.8000, 0.2000])
    """

    task_weights: Tensor

    def __init__(self, tasks: int | Sequence[str], *, every: int = 100, **options: Unpack[Options]) -> None:
        options.setdefault("heads", "aggregated")
        super().__init__(tasks, **options)
        if every < 1:
            raise ValueError(f"every is {every}, expected a number of steps, 1 or more")
        self.every = every
        self.register_buffer("task_weights", torch.ones(self.shape))
        self._steps = 0

    def compares(self, seen: Seen) -> bool:
        return self._due()

    def multipliers(self, losses: Tensor, learning: bool) -> Tensor | None:
        self._steps += learning
        return None if self._due() else self.task_weights

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        weights = gradnorm_proxy_weights(gram)
        if seen.learning:
            self.task_weights.copy_(torch.where(seen.present & self._counts(gram, seen), weights, self.task_weights))
        return weights

    def _due(self) -> bool:
        return self._steps % self.every == 0

    def get_extra_state(self) -> dict[str, int]:
        return {"steps": self._steps}

    def set_extra_state(self, state: Any) -> None:
        self._steps = int(state["steps"])

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self._steps = 0
        self.task_weights.fill_(1.0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, every={self.every}"
