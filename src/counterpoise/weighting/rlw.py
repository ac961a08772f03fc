"""RLW: random weights, a strong and honest baseline."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from .._state.seeds import replica_seeds
from ..balancer import Common
from ..functional import Step, normal, weighted_sum
from ..functional._masking import masked_softmax
from ..registry import register
from .base import Weighting


@register("rlw", paper="Lin et al. 2022", summary="random weights: the baseline that any clever method has to beat")
class RLW(Weighting):
    r"""Random loss weighting (Lin et al., TMLR 2022).

    .. math:: w = \operatorname{softmax}(\varepsilon), \qquad \varepsilon_i \sim \mathcal N(0, 1)

    anew at each training step, from the stream of `seed`: the same on every device and rank, and across a checkpoint.
    With a `batch_shape`, `seed` may give one seed per replica; a single one is counted up over the replicas.

    Example:
        >>> a, b = RLW(3, seed=7), RLW(3, seed=7)
        >>> losses = torch.ones(3)
        >>> bool(a(losses) == b(losses)), torch.equal(a.weights, b.weights)
        (True, True)
    """

    seed: Tensor
    counter: Tensor

    def __init__(self, tasks: int | Sequence[str], *, seed: int | Sequence[int] = 0, **common: Unpack[Common]) -> None:
        super().__init__(tasks, **common)
        self.register_buffer("seed", replica_seeds(seed, self.batch_shape))
        self.register_buffer("counter", torch.zeros(self.batch_shape, dtype=torch.long))

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        draws = normal(self.seed, self.counter, len(self.tasks))
        if learning:
            self.counter += 1
        return weighted_sum(masked_softmax(draws, torch.isfinite(losses)), losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.counter.zero_()
