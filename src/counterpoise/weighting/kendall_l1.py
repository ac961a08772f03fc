"""Kendall + ℓ1: learned log-variances, normalised weights, split objectives."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, kendall_l1
from ..functional._floats import FloatStep
from ..inputs import PerTask
from ..registry import register
from ._state_floats import read_floats
from .kendall import Kendall


@register(
    "kendall-l1",
    paper="Subedi 2026, normalisation ablation",
    summary="Kendall with weights that sum to 1: isolates the effect of normalisation",
)
class KendallL1(Kendall):
    r"""Uncertainty weighting with normalised, detached weights (Subedi 2026, normalisation ablation).

    The log-variances are learned as in `Kendall`, but the network receives weights that sum to 1. Use it to measure
    what normalisation alone contributes to `BPGS`.

    .. math:: J = \sum_i \mathrm{sg}[\alpha_i] L_i, \qquad \alpha = e^{-s} / \textstyle\sum_j e^{-s_j}

    The log-variances :math:`s` receive Kendall's own gradient :math:`\tfrac12 (1 - e^{-s_i} L_i)`.

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

    Attributes:
        log_vars: The learned log-variances :math:`s`. Pass them to the optimiser with `param_groups()`.

    Returns:
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.KendallL1(2)
        >>> balancer(torch.tensor([1.0, 3.0])).item()
        2.0

    References:
        Subedi, Bounded Precision-Geometry Scaling for Robust Multi-Task Learning under Loss Scale Mismatch, 2026.
        Authors' code: https://github.com/neryva-lab/spectra
    """

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

    @property
    def normalised(self) -> bool:
        return True

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        return _floats.kendall_l1(read_floats(self, "log_vars"), losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return kendall_l1(self.log_vars, losses)
