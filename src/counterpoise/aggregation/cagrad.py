"""CAGrad: the best direction for the worst-off task, near the average."""

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from ..functional import cagrad_weights
from ..registry import register
from .base import Aggregation, Options, Seen


@register(
    "cagrad",
    paper="Liu et al. 2021",
    space="gradient",
    needs=("shared",),
    summary="near the average gradient, best for the worst-off task: conflict, with the average as the goal",
)
class CAGrad(Aggregation):
    r"""Conflict-averse gradient descent (Liu et al., NeurIPS 2021).

    .. math:: \max_d \min_i \langle g_i, d\rangle \quad\text{s.t. } \|d - g_0\| \le \alpha \|g_0\|

    with :math:`g_0` the mean gradient. `rescale` divides by :math:`1 + \alpha^2`, as the authors' code does by default;
    public codes differ here. The solver is exact: see `counterpoise.functional.cagrad`.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = CAGrad(2, rescale=False)
        >>> _ = balancer.backward([w[0], w[1]], shared=[w])  # symmetric: (1 + α) times the average
        >>> w.grad
        tensor([0.7000, 0.7000])
    """

    def __init__(
        self, tasks: int | Sequence[str], *, alpha: float = 0.4, rescale: bool = True, **options: Unpack[Options]
    ) -> None:
        super().__init__(tasks, **options)
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha is {alpha}, expected a number in [0, 1)")
        self.alpha = alpha
        self.rescale = rescale

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        return cagrad_weights(gram, alpha=self.alpha, rescale=self.rescale)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha}, rescale={self.rescale}"
