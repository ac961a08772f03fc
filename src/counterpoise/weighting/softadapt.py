"""SoftAdapt: softmax of the ratios of successive losses."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _float_rules, _floats, softadapt_weights, weighted_sum
from ..functional._floats import FloatStep
from ..functional._masking import clamp_to_dtype
from ..inputs import PerTask
from ..registry import register
from ._state_floats import read_floats, write_floats
from .base import Weighting


@register(
    "softadapt",
    paper="Heydari et al. 2019",
    url="https://arxiv.org/abs/1912.12355",
    summary="more weight for losses that fell less since the last step: DWA without epochs, but noisy",
)
class SoftAdapt(Weighting):
    r"""SoftAdapt with ratios of losses (Heydari et al. 2019).

    A loss that decreased less than the others in the last step gets more weight. The weights are invariant to the scale
    of a loss, and they follow the noise of every batch.

    .. math:: w(t) = T \operatorname{softmax}\bigl(L(t) / L(t - 1)\bigr)

    All weights are 1 in the first step. The paper uses differences of losses, which depend on their scale; the form
    with ratios is the one that PINN libraries implement. In evaluation mode the weights of the last training step are
    used.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Whether absent tasks enter the statistics with a running mean of their last losses, for
            loops in which a batch does not have all tasks. Default: `False`.
        max_ratio (float, optional): Bound on the ratio of the largest to the smallest weight, before `importance`.
            Beyond it, the weights are no longer invariant to the scale of a loss. Default: `None`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Returns:
        Calling the balancer returns the weighted sum, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.SoftAdapt(2)
        >>> for losses in ([1.0, 2.0], [1.0, 1.0]):
        ...     _ = balancer(torch.tensor(losses))
        >>> [round(w, 3) for w in balancer.weights.tolist()]
        [1.245, 0.755]

    References:
        Heydari et al., SoftAdapt: Techniques for Adaptive Loss Weighting of Neural Networks with Multi-Part Loss
        Functions. https://arxiv.org/abs/1912.12355
    """

    weight: Tensor
    previous: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        max_ratio: float | None = None,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        self.register_buffer("weight", torch.ones(self.shape))
        self.register_buffer("previous", torch.full(self.shape, torch.nan))

    @property
    def normalised(self) -> bool:
        return True

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        if not learning:
            return _floats.weighted_sum(read_floats(self, "weight"), losses)
        new = _float_rules.ratio_weights(losses, read_floats(self, "previous"), temperature=1.0)
        weights, _ = write_floats(self, weight=new, previous=losses)
        return _floats.weighted_sum(weights, losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        if learning:  # not in `observe`: remembered losses take part in the softmax
            self._update(losses)
        return weighted_sum(self.weight, losses)

    def _update(self, losses: Tensor) -> None:
        present = torch.isfinite(losses)
        self.weight.copy_(torch.where(present, softadapt_weights(losses, self.previous), self.weight))
        self.previous.copy_(torch.where(present, clamp_to_dtype(losses, self.previous.dtype), self.previous))

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.weight.fill_(1)
        self.previous.fill_(torch.nan)
