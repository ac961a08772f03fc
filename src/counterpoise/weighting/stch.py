"""STCH: smooth maximum of the losses relative to their values after warm-up."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, log_sum, stch
from ..functional._floats import FloatStep
from ..inputs import PerTask, check_number
from ..registry import register
from ._epochs import EpochWeighting
from ._state_floats import read_floats, read_integer


@register(
    "stch",
    paper="Lin et al. 2024",
    url="https://arxiv.org/abs/2402.19078",
    needs=("epoch_end",),
    summary="smooth maximum of relative losses: when the worst task matters most",
)
class STCH(EpochWeighting):
    r"""Smooth Tchebycheff scalarisation (Lin et al., ICML 2024).

    The objective is a smooth maximum of the losses, each relative to its value after warm-up. Use it when the worst
    task matters most. Call `epoch_end()` after each epoch.

    .. math:: J = \mu \log \sum_i e^{\ell_i / \mu}, \qquad \ell_i = \log (L_i / \text{nadir}_i)

    The nadir is the mean loss of the first epoch after `warmup` epochs. Until it is known, the objective is
    :math:`\sum_i \log L_i`. The objective may be negative.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        mu (float, optional): Smoothing :math:`\mu`; smaller values are closer to the maximum. Default: `1.0`.
        warmup (int, optional): Number of epochs before the one that sets the nadir. Default: `4`.
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
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.STCH(2, warmup=0)
        >>> _ = balancer(torch.tensor([1.0, 4.0]))
        >>> balancer.epoch_end()
        >>> _ = balancer(torch.tensor([1.0, 2.0]))
        >>> [round(w, 3) for w in balancer.weights.tolist()]
        [0.667, 0.167]

    References:
        Lin et al., Smooth Tchebycheff Scalarization for Multi-Objective Optimization.
        https://arxiv.org/abs/2402.19078
    """

    linear: ClassVar[bool] = False
    epoch: Tensor
    nadir: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        mu: float = 1.0,
        warmup: int = 4,
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
        check_number(self, "mu", mu, above=0)
        check_number(self, "warmup", warmup, least=0, whole=True)
        self.mu = mu
        self.warmup = warmup
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))
        self.register_buffer("nadir", torch.ones(self.shape))

    def weigh_epoch_floats(self, losses: list[float]) -> FloatStep:
        if read_integer(self, "epoch") <= self.warmup:
            return _floats.log_sum(losses)
        return _floats.stch(losses, read_floats(self, "nadir"), mu=self.mu)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        warm = self.epoch <= self.warmup
        early, late = log_sum(losses), stch(losses, self.nadir, mu=self.mu)
        return Step(torch.where(warm, early.objective, late.objective), torch.where(warm, early.weights, late.weights))

    def update_from_epoch(self, mean: Tensor) -> None:
        measured = (self.epoch == self.warmup) & torch.isfinite(mean)  # an absent task keeps nadir 1
        self.nadir.copy_(torch.where(measured, mean, self.nadir))
        self.epoch += 1

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.epoch.zero_()
        self.nadir.fill_(1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mu={self.mu}, warmup={self.warmup}"
