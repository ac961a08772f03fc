"""DWA: weights from how fast each loss decreased over the last two epochs."""

from collections.abc import Mapping, Sequence
from math import isnan

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, dwa_weights, weighted_sum
from ..functional._floats import FloatStep
from ..inputs import PerTask, check_number
from ..registry import register
from ._epochs import EpochWeighting
from ._state_floats import read_floats


@register(
    "dwa",
    paper="Liu et al. 2019",
    url="https://arxiv.org/abs/1803.10704",
    needs=("epoch_end",),
    summary="more weight for slow tasks, from epoch means: for losses of similar scale and different speed",
)
class DWA(EpochWeighting):
    r"""Dynamic weight average (Liu, Johns and Davison, CVPR 2019).

    Tasks whose loss decreases slowly get more weight. Use it for losses of similar scale that train at different
    speeds. Call `epoch_end()` after each epoch.

    .. math:: w = T \operatorname{softmax}\bigl((\bar L_{e-1} / \bar L_{e-2}) / \text{temperature}\bigr)

    The :math:`\bar L` are mean losses per epoch. All weights are 1 during the first two epochs.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        temperature (float, optional): Temperature of the softmax; higher values give more equal weights.
            Default: `2.0`.
        max_epoch_steps (int, optional): Number of steps without `epoch_end()` after which an error is raised. `None`
            disables the check. Default: `100_000`.
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
        >>> balancer = cp.DWA(2)
        >>> for mean in ([1.0, 1.0], [1.0, 0.5]):
        ...     _ = balancer(torch.tensor(mean))
        ...     balancer.epoch_end()
        >>> _ = balancer(torch.tensor([1.0, 1.0]))
        >>> bool(balancer.weights[0] > balancer.weights[1])
        True

    References:
        Liu et al., End-to-End Multi-Task Learning with Attention. https://arxiv.org/abs/1803.10704
    """

    last: Tensor
    before_last: Tensor
    _epoch_weights: list[float]  # they change after an epoch only
    _weights_of: object = None  # mean losses, temperature and precision that they were computed from

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        temperature: float = 2.0,
        max_epoch_steps: int | None = 100_000,
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
            max_epoch_steps=max_epoch_steps,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "temperature", temperature, above=0)
        self.temperature = temperature
        self.register_buffer("last", torch.full(self.shape, torch.nan))
        self.register_buffer("before_last", torch.full(self.shape, torch.nan))

    @property
    def normalised(self) -> bool:
        return True

    def weigh_epoch_floats(self, losses: list[float]) -> FloatStep:
        last, temperature = self.last, self.temperature
        means = [None if isnan(mean) else mean for mean in (*last.tolist(), *read_floats(self, "before_last"))]
        if self._weights_of != (means, temperature, last.dtype):
            weights = dwa_weights(last, self.before_last, temperature=temperature)
            self._weights_of, self._epoch_weights = (means, temperature, last.dtype), weights.tolist()
        return _floats.weighted_sum(self._epoch_weights, losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(dwa_weights(self.last, self.before_last, temperature=self.temperature), losses)

    def update_from_epoch(self, mean: Tensor) -> None:
        self.before_last.copy_(self.last)
        self.last.copy_(mean)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.last.fill_(torch.nan)
        self.before_last.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}"
