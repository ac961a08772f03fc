"""CoV-Weighting: weights from the coefficient of variation of each loss."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import CoVState, Step, _float_rules, _floats, cov_update, cov_weights, weighted_sum
from ..functional._float_rules import CoVLists
from ..functional._floats import FloatStep
from ..functional._step import round_floats
from ..inputs import PerTask, check_number
from ..registry import register
from ._state_floats import read_floats, write_floats
from .base import Weighting


@register(
    "cov-weighting",
    paper="Groenendijk et al. 2021",
    url="https://arxiv.org/abs/2009.01717",
    summary="weights from the coefficient of variation: more weight for losses that still vary",
)
class CoVWeighting(Weighting):
    r"""Weights from coefficients of variation (Groenendijk et al., WACV 2021).

    A loss that varies a lot relative to its mean is still being learned and gets more weight. The weights are invariant
    to the scale of a loss.

    .. math:: w_i \propto \frac{\operatorname{std}(\ell_i)}{\operatorname{mean}(\ell_i)}, \qquad
        \ell_i(t) = \frac{L_i(t)}{\operatorname{mean}(L_i(1), \dots, L_i(t - 1))}

    The weights sum to 1. Those of a step are computed from the statistics before it, so that they are equal in the
    first two steps.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        decay (float, optional): Decay rate of the statistics, in [0, 1). `None` weights all steps equally.
            Default: `None`.
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
        >>> balancer = cp.CoVWeighting(2)
        >>> for losses in ([1.0, 4.0], [0.5, 3.0], [0.4, 2.0]):
        ...     _ = balancer(torch.tensor(losses))
        >>> [round(w, 3) for w in balancer.weights.tolist()]
        [0.7, 0.3]

    References:
        Groenendijk et al., Multi-Loss Weighting with Coefficient of Variations. https://arxiv.org/abs/2009.01717
    """

    steps: Tensor
    mean_loss: Tensor
    mean_ratio: Tensor
    variance: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        decay: float | None = None,
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
        check_number(self, "decay", decay, least=0, below=1, optional=True)
        self.decay = decay
        for name in CoVState._fields:
            self.register_buffer(name, torch.zeros(self.shape))

    @property
    def normalised(self) -> bool:
        return True

    @property
    def statistics(self) -> CoVState:
        """Running statistics of the losses, each of shape (…, T)."""
        return CoVState(self.steps, self.mean_loss, self.mean_ratio, self.variance)

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        statistics = CoVLists(*(read_floats(self, name) for name in CoVState._fields))
        weights = round_floats(_float_rules.cov_weights(statistics), self._last.dtype)
        if learning:
            new = _float_rules.cov_update(statistics, losses, decay=self.decay)
            write_floats(self, **new._asdict())
        return _floats.weighted_sum(weights, losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(cov_weights(losses, self.statistics), losses)

    def _balance(self, losses: Tensor, learning: bool) -> Step:
        step = super()._balance(losses, learning)
        if learning:  # not in `observe`, because the weights of a step come from the statistics before it
            for old, new in zip(self.statistics, cov_update(self.statistics, losses, decay=self.decay), strict=True):
                old.copy_(new)
        return step

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        for statistic in self.statistics:
            statistic.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, decay={self.decay}"
