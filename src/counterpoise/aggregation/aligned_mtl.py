"""Aligned-MTL: gradients made orthogonal and equally long."""

from torch import Tensor

from ..functional import aligned_mtl_weights
from ..registry import register
from .base import Aggregation, Seen


@register(
    "aligned-mtl",
    paper="Senushkin et al. 2023",
    space="gradient",
    needs=("shared",),
    summary="aligns the principal components of the gradients: ill-conditioned systems of gradients",
)
class AlignedMTL(Aggregation):
    r"""Independent component alignment (Senushkin et al., CVPR 2023).

    .. math:: w = B \mathbf 1, \qquad B = \sqrt{\lambda_{\min}}\, V \Lambda^{-1/2} V^\top, \quad G = V \Lambda V^\top

    so that the aligned gradients :math:`B J` are orthogonal and of one length, that of the weakest principal component.
    `counterpoise.functional.aligned_mtl_weights` says which eigenvalues count as zero. The eigendecomposition waits for
    the device.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = AlignedMTL(2)
        >>> _ = balancer.backward([w[0], 3 * w[1]], shared=[w])
        >>> w.grad
        tensor([1., 1.])
    """

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        return aligned_mtl_weights(gram)
