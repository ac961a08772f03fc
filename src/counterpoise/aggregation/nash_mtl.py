"""Nash-MTL: the bargaining solution."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from ..functional import nash_weights
from ..registry import register
from .base import Aggregation, Options, Seen


@register(
    "nash-mtl",
    paper="Navon et al. 2022",
    space="gradient",
    needs=("shared",),
    summary="bargaining solution: equal relative gains, whatever the scales of the losses",
)
class NashMTL(Aggregation):
    r"""Multi-task learning as a bargaining game (Navon et al., ICML 2022).

    .. math:: \alpha_i (G \alpha)_i = 1 \quad\text{for all } i

    The direction has length √T then; `max_norm` shortens it where it is longer (None: never). The fixed point is
    solved exactly, not by a sequence of convex programs; where none exists (opposite gradients, Pareto stationarity)
    the weights are MGDA's: see `counterpoise.functional.nash`.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = NashMTL(2, max_norm=None)
        >>> _ = balancer.backward([w[0], 1000 * w[1]], shared=[w])
        >>> w.grad
        tensor([1., 1.])
    """

    def __init__(self, tasks: int | Sequence[str], *, max_norm: float | None = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(tasks, **options)
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm is {max_norm}, expected a positive number or None")
        self.max_norm = max_norm

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        weights = nash_weights(gram)
        if self.max_norm is None:
            return weights
        # ‖Σ α_i g_i‖² = αᵀGα, where an absent task has weight 0 and a row that may be NaN.
        products = torch.where(weights != 0, (gram.nan_to_num(0.0) @ weights.unsqueeze(-1)).squeeze(-1), 0.0)
        length = (weights * products).sum(-1, keepdim=True).clamp_min(0.0).sqrt()
        return weights * (self.max_norm / length.clamp_min(1e-30)).clamp_max(1.0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, max_norm={self.max_norm}"
