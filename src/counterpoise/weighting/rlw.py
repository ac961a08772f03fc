"""RLW: random weights."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._state.seeds import replica_seeds
from ..distributed import ProcessGroup
from ..functional import Step, _floats, normal, weighted_sum
from ..functional._floats import FloatStep
from ..functional._masking import masked_softmax
from ..functional._random import draw_floats
from ..inputs import PerTask
from ..registry import register
from ._state_floats import read_integer, write_integer
from .base import Weighting


@register(
    "rlw",
    paper="Lin et al. 2022",
    url="https://arxiv.org/abs/2111.10603",
    summary="random weights: a baseline that an adaptive method should beat",
)
class RLW(Weighting):
    r"""Random loss weighting (Lin et al., TMLR 2022).

    The weights are drawn anew in every training step. Use it as a baseline that an adaptive method should beat.

    .. math:: w = \operatorname{softmax}(\varepsilon), \qquad \varepsilon_i \sim \mathcal N(0, 1)

    The draws depend on `seed` and a step counter alone: they are the same on every device and rank, and continue
    after a checkpoint is loaded.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        seed (int or sequence of int, optional): Seed of the random stream. With `batch_shape`, one seed per replica;
            a single seed is incremented from replica to replica. Default: `0`.
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
        >>> a, b = cp.RLW(3, seed=7), cp.RLW(3, seed=7)
        >>> losses = torch.ones(3)
        >>> bool(a(losses) == b(losses)), torch.equal(a.weights, b.weights)
        (True, True)

    References:
        Lin et al., Reasonable Effectiveness of Random Weighting: A Litmus Test for Multi-Task Learning.
        https://arxiv.org/abs/2111.10603
    """

    requires_positive_losses: bool = False
    seed: Tensor
    counter: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        seed: int | Sequence[int] = 0,
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
        self.register_buffer("seed", replica_seeds(seed, self.batch_shape))
        self.register_buffer("counter", torch.zeros(self.batch_shape, dtype=torch.long))

    @property
    def normalised(self) -> bool:
        return True

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        seed, counter = read_integer(self, "seed"), read_integer(self, "counter")
        weights = _floats.softmax(draw_floats(normal, seed, counter, len(losses)))
        if learning:
            write_integer(self, "counter", counter + 1)
        return _floats.weighted_sum(weights, losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        draws = normal(self.seed, self.counter, len(self.tasks))
        if learning:
            self.counter.add_(1)
        return weighted_sum(masked_softmax(draws, torch.isfinite(losses)), losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.counter.zero_()
