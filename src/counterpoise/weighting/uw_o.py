"""UW-O: inverse losses, the optimum of uncertainty weighting for each batch."""

from collections.abc import Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, uw_o
from ..registry import register
from .base import Weighting


@register(
    "uw-o",
    paper="Kirchdorfer et al. 2024",
    url="https://arxiv.org/abs/2408.07985",
    summary="weights 1/L: invariant to loss scale from the first step, but follows the noise of every batch",
)
class UWO(Weighting):
    r"""Optimal uncertainty weighting (Kirchdorfer et al. 2024).

    The weights minimise Kendall's objective for the current batch. They are invariant to the scale of a loss from the
    first step, but they follow the noise of every batch.

    .. math:: J = \sum_i \frac{L_i}{\mathrm{sg}[L_i]}

    The value of the objective is always the number of tasks; only its gradient is informative. With `normalise=True`
    the weights sum to 1 (ℓ1-UW-O). These are also the weights of BPGS at its fixed point :math:`s_i = \log L_i`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        normalise (bool, optional): Whether the weights sum to 1. Default: `False`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent. This check waits for the device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Returns:
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.UWO(2)
        >>> balancer(torch.tensor([2.0, 4.0])).item(), balancer.weights.tolist()
        (2.0, [0.5, 0.25])

    References:
        Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning.
        https://arxiv.org/abs/2408.07985
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        normalise: bool = False,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(tasks, batch_shape=batch_shape, strict=strict, process_group=process_group)
        self.normalise = normalise

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return uw_o(losses, normalise=self.normalise)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalise={self.normalise}"
