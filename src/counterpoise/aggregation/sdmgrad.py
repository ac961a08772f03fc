"""SDMGrad: MGDA pulled towards the average gradient, solved by a few steps at a time."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from .._state.float32 import state_dtype
from ..functional import sdmgrad_weights
from ..registry import register
from .base import Aggregation, Options, Seen


@register(
    "sdmgrad",
    paper="Xiao et al. 2023",
    space="gradient",
    needs=("shared",),
    summary="MGDA pulled towards the average, its weights carried from step to step",
)
class SDMGrad(Aggregation):
    r"""Direction-oriented multi-objective learning (Xiao, Ban and Ji, NeurIPS 2023).

    .. math:: \min_w \tfrac12 \|g_w + \lambda g_0\|^2 \quad\text{on the simplex},
       \qquad d = \frac{g_w + \lambda g_0}{1 + \lambda}

    by `iterations` projected momentum steps from the last step's w. The default `lr` is too long for these to settle at
    the minimum, 0.3 to 1 is not (see `counterpoise.functional.sdmgrad_weights`). The paper draws independent batches
    for the two factors of the Gram matrix, which makes its gradient in w unbiased; here both come from the one batch of
    the loop.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = SDMGrad(2)
        >>> _ = balancer.backward([w[0], w[1]], shared=[w])
        >>> w.grad
        tensor([0.5000, 0.5000])
    """

    w: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        lam: float = 0.3,
        lr: float = 10.0,
        momentum: float = 0.5,
        iterations: int = 20,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(tasks, **options)
        if lam < 0 or lr <= 0 or not 0 <= momentum < 1 or iterations < 1:
            raise ValueError(
                f"lam, lr, momentum, iterations are {lam}, {lr}, {momentum}, {iterations}, expected lam ≥ 0, lr > 0, "
                f"momentum in [0, 1) and at least one iteration"
            )
        self.lam, self.lr, self.momentum, self.iterations = lam, lr, momentum, iterations
        self.register_buffer("w", torch.full(self.shape, 1 / len(self.tasks), dtype=state_dtype()))

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        weights, w = sdmgrad_weights(
            gram, self.w, lam=self.lam, lr=self.lr, momentum=self.momentum, iterations=self.iterations
        )
        if seen.learning:
            self.w.copy_(torch.where(self._counts(gram, seen), w, self.w))
        return weights

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.w.fill_(1 / len(self.tasks))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, lam={self.lam}, lr={self.lr}, momentum={self.momentum}"
