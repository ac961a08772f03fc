"""FairGrad: α-fair improvement of all tasks."""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from ..functional import fairgrad_weights
from ..registry import register
from .base import Aggregation, Options, Seen


@register(
    "fairgrad",
    paper="Ban and Ji 2024",
    space="gradient",
    needs=("shared",),
    summary="α-fair gains: from the sum of gains (α → 0) over Nash (1) to the worst gain (α → ∞)",
)
class FairGrad(Aggregation):
    r"""Fair resource allocation (Ban and Ji, ICML 2024).

    .. math:: G w = w^{-1/\alpha}

    The solver is Newton's method on a strictly convex problem; where no solution exists (opposite gradients, Pareto
    stationarity) it answers with MGDA's weights: see `counterpoise.functional.fairgrad`.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = FairGrad(2, alpha=2.0)
        >>> _ = balancer.backward([w[0], 4 * w[1]], shared=[w])  # w_i = ‖g_i‖^(−2α/(1+α))
        >>> [round(w, 4) for w in balancer.weights.tolist()]
        [1.0, 0.1575]
    """

    def __init__(self, tasks: int | Sequence[str], *, alpha: float = 1.0, **options: Unpack[Options]) -> None:
        super().__init__(tasks, **options)
        if not alpha > 0:
            raise ValueError(f"alpha is {alpha}, expected a positive number")
        self.alpha = alpha

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        return fairgrad_weights(gram, alpha=self.alpha)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha}"
