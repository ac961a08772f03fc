"""GLS: geometric mean of the losses."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, geometric_mean
from ..functional._floats import FloatStep
from ..inputs import PerTask
from ..registry import register
from .base import Weighting


@register(
    "gls",
    paper="Chennupati et al. 2019",
    url="https://arxiv.org/abs/1904.08492",
    summary="geometric mean of the losses: invariant to loss scale without any state, for few tasks",
)
class GeometricMean(Weighting):
    r"""Geometric mean of the losses (geometric loss strategy, Chennupati et al., CVPR workshops 2019).

    Rescaling a loss multiplies the objective by a constant, so the scales do not need to be balanced. The method has
    no state. Use it for a small number of tasks.

    .. math:: J = \Bigl(\prod_i L_i\Bigr)^{1/T} = \exp\Bigl(\frac1T \sum_i \log L_i\Bigr)

    The product runs over the tasks that are present. Losses are clamped to at least 1e-8 before the logarithm.

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
        Calling the balancer returns the geometric mean, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> cp.GeometricMean(2)(torch.tensor([1.0, 4.0])).item()
        2.0

    References:
        Chennupati et al., MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy for Multi-Task
        Learning. https://arxiv.org/abs/1904.08492
    """

    linear: ClassVar[bool] = False
    adaptive: ClassVar[bool] = False  # a line search sees a single function of the losses

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

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _floats.geometric_mean(losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return geometric_mean(losses)
