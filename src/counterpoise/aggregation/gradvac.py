"""GradVac: gradients are turned until they are as similar as they usually are."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from ..functional import gradvac_weights
from ..registry import register
from .base import Options, Seen
from .pcgrad import PCGrad


@register(
    "gradvac",
    paper="Wang et al. 2021",
    space="gradient",
    needs=("shared",),
    summary="PCGrad with a moving target: keeps gradients as similar as they usually are",
)
class GradVac(PCGrad):
    r"""Gradient vaccine (Wang et al., ICLR 2021).

    .. math:: \hat g_i \leftarrow \hat g_i + \frac{\|\hat g_i\| (\hat\phi_{ij} \sqrt{1 - \phi_{ij}^2}
       - \phi_{ij} \sqrt{1 - \hat\phi_{ij}^2})}{\|g_j\| \sqrt{1 - \hat\phi_{ij}^2}} g_j
       \quad\text{if } \phi_{ij} < \hat\phi_{ij}

    with :math:`\phi_{ij}` the cosine of :math:`\hat g_i` and :math:`g_j`, after which that cosine is
    :math:`\hat\phi_{ij}`, a moving average of the cosines seen, 0 at the start. β is 0.01 in the paper, 0.5 in one
    library.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = GradVac(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # at first φ̂ = 0: PCGrad
        >>> w.grad
        tensor([0.5000, 1.5000])
    """

    phi: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        beta: float = 0.01,
        seed: int | Sequence[int] = 0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(tasks, seed=seed, **options)
        if not 0 <= beta <= 1:
            raise ValueError(f"beta is {beta}, expected a number in [0, 1]")
        self.beta = beta
        self.register_buffer("phi", torch.zeros(*self.shape, len(self.tasks)))

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        weights, phi = gradvac_weights(gram, self.phi, self._order(seen), beta=self.beta)
        if seen.learning:
            self.phi.copy_(torch.where(self._counts(gram, seen).unsqueeze(-1), phi, self.phi))
        return weights

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.phi.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}"
