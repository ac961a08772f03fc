"""UPGrad: a direction that conflicts with no task."""

from torch import Tensor

from ..functional import upgrad_weights
from ..registry import register
from .base import Aggregation, Seen


@register(
    "upgrad",
    paper="Quinton and Rey 2024",
    space="gradient",
    needs=("shared",),
    summary="projects each gradient on the dual cone: no conflict with any task, gains in proportion",
)
class UPGrad(Aggregation):
    r"""Unconflicting projection of gradients (Quinton and Rey 2024).

    .. math:: d = \frac1T \sum_i \pi(g_i), \qquad \pi \text{ the projection on } \{d : \langle g_j, d\rangle \ge 0\
       \forall j\}

    The solver is exact: see `counterpoise.functional.upgrad`.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = UPGrad(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # gradients (1, 0) and (−1, 1)
        >>> w.grad
        tensor([0.2500, 0.7500])
    """

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        return upgrad_weights(gram)
