"""PCGrad: conflicting gradients lose what conflicts."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from .._state.seeds import replica_seeds
from ..functional import pcgrad_weights, uniform
from ..registry import register
from .base import Aggregation, Options, Seen


@register(
    "pcgrad",
    paper="Yu et al. 2020",
    space="gradient",
    needs=("shared",),
    summary="projects each gradient off those it conflicts with: conflict, at similar scales",
)
class PCGrad(Aggregation):
    r"""Projecting conflicting gradients (Yu et al., NeurIPS 2020).

    .. math:: \hat g_i \leftarrow \hat g_i - \frac{\hat g_i \cdot g_j}{\|g_j\|^2} g_j
       \quad\text{if } \hat g_i \cdot g_j < 0

    for each i, starting from :math:`g_i`, over the other tasks j in random order; the direction is the **sum** of the
    :math:`\hat g_i`. Orders come from the stream of `seed`: the same on every device and rank, and across a checkpoint.
    Everything happens on the Gram matrix. The paper's code sums; one popular port averages.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = PCGrad(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # gradients (1, 0) and (−1, 1)
        >>> w.grad
        tensor([0.5000, 1.5000])
    """

    seed: Tensor
    counter: Tensor

    def __init__(
        self, tasks: int | Sequence[str], *, seed: int | Sequence[int] = 0, **options: Unpack[Options]
    ) -> None:
        super().__init__(tasks, **options)
        self.register_buffer("seed", replica_seeds(seed, self.batch_shape))
        self.register_buffer("counter", torch.zeros(self.batch_shape, dtype=torch.long))

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        return pcgrad_weights(gram, self._order(seen))

    def _order(self, seen: Seen) -> Tensor:
        """For each task, the order in which it meets the others."""
        tasks = len(self.tasks)
        draws = uniform(self.seed, self.counter, tasks * tasks).view(*self.batch_shape, tasks, tasks)
        if seen.learning:
            self.counter += seen.present.any(-1)
        return draws.argsort(-1)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.counter.zero_()
