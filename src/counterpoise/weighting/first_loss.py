"""First-loss normalisation: inverse losses of the first batch."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, uw_o
from ..functional._floats import FloatStep
from ..functional._masking import clamp_to_dtype, output_dtype
from ..inputs import PerTask, check_flags
from ..registry import register
from ._state_floats import read_floats
from .base import Weighting


@register("first-loss", summary="1/L of the first batch, then fixed: a baseline that removes the initial loss scales")
class FirstLoss(Weighting):
    r"""Inverse losses of the first batch as fixed weights.

    Every task starts with a weighted loss of 1. Use it as a baseline that shows whether changing the weights during
    training helps. It also avoids the collapse of methods that divide by the current losses.

    .. math:: w_i = 1 / L_i(t_i)

    Here :math:`t_i` is the first training step that has task :math:`i` with a positive loss. Before it, the weight of
    the task is 1.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        normalise (bool, optional): Whether the weights sum to 1. Default: `False`.
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
        >>> balancer = cp.FirstLoss(2)
        >>> for losses in ([2.0, 4.0], [1.0, 3.0]):
        ...     _ = balancer(torch.tensor(losses))
        >>> balancer.weights.tolist()
        [0.5, 0.25]
    """

    adaptive: ClassVar[bool] = False
    uses_first_losses: ClassVar[bool] = True
    first: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        normalise: bool = False,
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
        check_flags(self, normalise=normalise)
        self.normalise = normalise
        self.register_buffer("first", torch.full(self.shape, torch.nan))

    @property
    def normalised(self) -> bool:
        return self.normalise

    def _must_be_positive(self) -> Tensor:
        return torch.isnan(self.first)

    def observe(self, losses: Tensor) -> None:
        self.first.copy_(self._with_new_tasks(losses))

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep | None:
        first = read_floats(self, "first")
        return None if math.isnan(sum(first)) else _floats.uw_o(losses, first, normalise=self.normalise)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        first = self.first if learning else self._with_new_tasks(losses)
        return uw_o(losses, torch.nan_to_num(first.to(output_dtype(losses)), 1.0), normalise=self.normalise)

    def _with_new_tasks(self, losses: Tensor) -> Tensor:
        """Return the first losses, including those of tasks that are new in this step."""
        new = torch.isnan(self.first) & torch.isfinite(losses) & (losses > 0)
        return torch.where(new, clamp_to_dtype(losses, self.first.dtype), self.first)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.first.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalise={self.normalise}"
