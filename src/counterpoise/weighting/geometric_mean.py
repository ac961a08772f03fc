"""Geometric mean of the losses (GLS)."""

from typing import ClassVar

from torch import Tensor

from ..functional import Step, geometric_mean
from ..registry import register
from .base import Weighting


@register("gls", paper="Chennupati et al. 2019", summary="geometric mean: scale-free without any state, for few tasks")
class GeometricMean(Weighting):
    r"""The geometric loss strategy (Chennupati et al., CVPR workshops 2019).

    .. math:: J = \Bigl(\prod_i L_i\Bigr)^{1/T} = \exp\Bigl(\frac1T \sum_i \log L_i\Bigr)

    over the tasks that are present. Losses are floored at 1e-8 under the logarithm.

    Example:
        >>> GeometricMean(2)(torch.tensor([1.0, 4.0])).item()
        2.0
    """

    linear: ClassVar[bool] = False

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return geometric_mean(losses)
