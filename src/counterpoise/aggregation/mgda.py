"""MGDA: the shortest common descent direction."""

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from ..functional import mgda_weights
from ..registry import register
from .base import Aggregation, Options, Seen

Normalise = Literal["none", "l2", "loss", "loss+"]


@register(
    "mgda",
    paper="Sener and Koltun 2018",
    space="gradient",
    needs=("shared",),
    summary="shortest vector of the convex hull: never against a task, slow where one gradient is small",
)
class MGDA(Aggregation):
    r"""Multiple-gradient descent (Désidéri 2012; Sener and Koltun, NeurIPS 2018).

    .. math:: \min_w \|\textstyle\sum_i w_i g_i\|^2 \quad\text{on the simplex}

    With `features=` this is MGDA-UB. `normalise` divides the gradients, when the weights are computed, by their norms
    ("l2"), by the losses ("loss"), or by both ("loss+"). The solver is exact: see `counterpoise.functional.mgda`.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = MGDA(2)
        >>> _ = balancer.backward([w[0], 2 * w[1]], shared=[w])  # gradients (1, 0) and (0, 2)
        >>> balancer.weights
        tensor([0.8000, 0.2000])
    """

    def __init__(
        self, tasks: int | Sequence[str], *, normalise: Normalise = "none", **options: Unpack[Options]
    ) -> None:
        super().__init__(tasks, **options)
        if normalise not in get_args(Normalise):
            expected = ", ".join(map(repr, get_args(Normalise)))
            raise ValueError(f"normalise is {normalise!r}, expected one of {expected}")
        self.normalise = normalise

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        divisors = torch.ones_like(seen.losses, dtype=gram.dtype)
        if self.normalise in ("l2", "loss+"):
            divisors = divisors * gram.diagonal(dim1=-2, dim2=-1).sqrt()
        if self.normalise in ("loss", "loss+"):
            divisors = divisors * seen.losses.to(gram.dtype)
        divisors = torch.where(divisors > 0, divisors, 1.0)
        return mgda_weights(gram / divisors.unsqueeze(-1) / divisors.unsqueeze(-2))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalise={self.normalise}"
