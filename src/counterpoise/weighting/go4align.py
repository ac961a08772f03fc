"""GO4Align: risk-guided weights, averaged within groups of tasks."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _float_rules, _floats, go4align_update, go4align_weights, weighted_sum
from ..functional._floats import FloatStep
from ..functional._step import round_floats
from ..inputs import PerTask, check_number
from ..registry import register
from ._state_floats import read_floats, write_floats
from .base import Weighting


@register(
    "go4align",
    paper="Shen et al. 2024",
    url="https://arxiv.org/abs/2404.06486",
    summary="inverse losses with learned probabilities, averaged within groups of tasks: for many related tasks",
)
class GO4Align(Weighting):
    r"""Group optimisation for multi-task alignment (Shen et al., NeurIPS 2024).

    Inverse losses, multiplied by probabilities that decrease for tasks with large losses. Tasks with similar weights
    form groups and share the mean weight of their group. Use it for many related tasks.

    .. math:: w_i = \operatorname*{mean}_{j \in \text{group of } i} \; p_j \frac{\sum_k L_k}{L_j}, \qquad
        p_i \leftarrow \frac{p_i\, e^{-\eta L_i}}{\sum_j p_j\, e^{-\eta L_j}}

    The groups are the optimal one-dimensional k-means clusters of the weights in each step. The authors' code runs
    Lloyd's algorithm from random centres.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        groups (int, optional): Largest number of groups. With as many groups as tasks, nothing is averaged.
            Default: `2`.
        step_size (float, optional): Step size :math:`\eta` of the probabilities. Default: `1e-4`.
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
        >>> balancer = cp.GO4Align(3, step_size=0.0)
        >>> _ = balancer(torch.tensor([1.0, 1.5, 6.0]))
        >>> [round(w, 3) for w in balancer.weights.tolist()]
        [2.361, 2.361, 0.472]

    References:
        Shen et al., GO4Align: Group Optimization for Multi-Task Alignment. https://arxiv.org/abs/2404.06486
    """

    log_probabilities: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        groups: int = 2,
        step_size: float = 1e-4,
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
        check_number(self, "groups", groups, least=1, whole=True)
        check_number(self, "step_size", step_size, least=0)
        self.groups = groups
        self.step_size = step_size
        self.register_buffer("log_probabilities", torch.full(self.shape, self._start))

    @property
    def _start(self) -> float:
        return -math.log(len(self.tasks))

    def observe(self, losses: Tensor) -> None:
        self.log_probabilities.copy_(go4align_update(self.log_probabilities, losses, step_size=self.step_size))

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep | None:
        if self.groups > 2:
            return None
        logs = read_floats(self, "log_probabilities")
        if learning:
            logs = _float_rules.go4align_update(logs, losses, step_size=self.step_size)
            (logs,) = write_floats(self, log_probabilities=logs)
        weights = _float_rules.go4align_weights(logs, losses, groups=self.groups)
        return _floats.weighted_sum(round_floats(weights, self._last.dtype), losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(go4align_weights(self.log_probabilities, losses, groups=self.groups), losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.log_probabilities.fill_(self._start)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}, step_size={self.step_size}"
