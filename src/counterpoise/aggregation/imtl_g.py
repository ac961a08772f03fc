"""IMTL-G: equal projections on every task gradient."""

from torch import Tensor

from ..functional import imtl_g_weights
from ..registry import register
from .base import Aggregation, Seen


@register(
    "imtl-g",
    paper="Liu et al. 2021",
    space="gradient",
    needs=("shared",),
    summary="equal projections on all gradients, in closed form: tasks that should move together",
)
class IMTLG(Aggregation):
    r"""The gradient balance of impartial multi-task learning (Liu et al., ICLR 2021).

    .. math:: \alpha \propto G^{-1} \sqrt{\operatorname{diag} G}, \qquad \textstyle\sum_i \alpha_i = 1

    so that the direction has the same projection on every :math:`g_i / \|g_i\|`. What happens where the sum is not
    positive is said in `counterpoise.functional.imtl_g`.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = IMTLG(2)
        >>> _ = balancer.backward([w[0], 3 * w[1]], shared=[w])
        >>> w.grad
        tensor([0.7500, 0.7500])
    """

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        return imtl_g_weights(gram)
