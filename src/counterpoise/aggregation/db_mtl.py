"""DB-MTL: logarithms of the losses, and gradients of equal length."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .. import gradients
from ..distributed import ProcessGroup
from ..functional._floats import FLOOR
from ..functional._outliers import outlier_factors
from ..gradients import GradientList, Passes, TaskGradients
from ..inputs import PerTask, check_number, split_fixed_tasks
from ..registry import register
from ..weighting import UWO, Weighting
from ._gradient_memory import GradientMemory
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "db-mtl",
    paper="Lin et al. 2023",
    url="https://arxiv.org/abs/2308.12029",
    space="gradient",
    needs=("shared",),
    summary="log-losses and smoothed gradients of equal length: against loss scale and dominance (memory: T × shared)",
)
class DBMTL(Aggregation):
    r"""Dual-balancing multi-task learning (Lin et al. 2023).

    The logarithm balances the scales of the losses, and smoothed gradients of equal length balance their directions.
    Use it when both the scales and the gradient norms differ. It stores one gradient per task.

    .. math:: \hat g_i \leftarrow \beta_k \hat g_i + (1 - \beta_k) \nabla \log L_i, \qquad
       d = \max_j \|\hat g_j\| \sum_i \frac{\hat g_i}{\|\hat g_i\|}, \qquad \beta_k = \beta / k^{\sigma}

    Here k is the number of the step. The logarithm is implemented as the loss-space weighting 1/L (`UWO`). The
    direction contains gradients of earlier steps, so `weights` is None.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        beta (float, optional): Decay :math:`\beta` of the running gradients, in [0, 1). Default: `0.9`.
        sigma (float, optional): Exponent :math:`\sigma` with which the decay decreases over steps. Default: `0.0`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` uses `UWO`. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all; `"auto"` uses a vectorised pass for small shared networks with `features=`,
            and a loop otherwise. Default: `"auto"`.
        ranks (str, optional): What is compared in a process group. `"exact"` averages the task gradients over ranks
            first, `"local"` compares those of each rank. Default: `"exact"`.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Enables `memory` of the weighting. Without a weighting it has no effect.
            Default: `False`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Returns:
        `backward` adds the direction to `.grad` and returns the objective of the weighting, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.DBMTL(2, beta=0.0)
        >>> _ = balancer.backward([w[0], 100 * w[1]], shared=[w])
        >>> w.grad
        tensor([1., 1.])

    References:
        Lin et al., Dual-Balancing for Multi-Task Learning. https://arxiv.org/abs/2308.12029
    """

    supports_sharding: ClassVar[bool] = False
    step: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        beta: float = 0.9,
        sigma: float = 0.0,
        weighting: Weighting | None = None,
        heads: Heads = "own",
        passes: Passes = "auto",
        ranks: Ranks = "exact",
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if weighting is None:
            balanced, _, _ = split_fixed_tasks(tasks, fixed)
            weighting = UWO(balanced, batch_shape=batch_shape, strict=strict, process_group=process_group)
        super().__init__(
            tasks,
            weighting=weighting,
            heads=heads,
            passes=passes,
            ranks=ranks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "beta", beta, least=0, below=1)
        check_number(self, "sigma", sigma, least=0)
        self.beta, self.sigma = beta, sigma
        self.memory = GradientMemory()
        self.register_buffer("step", torch.zeros(self.batch_shape))

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[None, GradientList]:
        step = (self.step + 1).unsqueeze(-1)
        factors = (torch.ones_like(step) * context.inverse_scale).expand(self.shape)
        measured = context.present
        if isinstance(self.weighting, UWO):
            measured = measured & (context.losses > FLOOR)  # below, the weight is not that of log L
        rates = measured * (1 - self.beta / step**self.sigma)  # a task that is not measured keeps its mean
        squares = self._squared_norms(grads, context)
        finite = self._all_finite(squares, context)
        means = self._sum_over_ranks(self.memory.squared_norms(grads, self.shape), grads).sqrt()
        factors = factors * outlier_factors(squares.sqrt(), means, rates).to(factors.dtype)
        rows = self.memory.update_means(grads, factors=factors, rates=rates, finite=finite, learning=context.learning)
        any_present = context.present.any(-1, keepdim=True)
        if context.learning:
            self.step.add_((finite & any_present)[..., 0])
        norms = self._sum_over_ranks(gradients.squared_norms(rows, len(self.batch_shape)), grads).sqrt()
        weights = self._times_importance(torch.where(norms > 0, norms.amax(-1, keepdim=True) / norms, 0.0))
        # A batch without labels gives a zero direction, although the running gradients are not zero.
        weights = torch.where(finite, weights, self._invalid_weight(context)) * any_present
        direction = gradients.combine(rows, weights if context.scale is None else weights * context.scale)
        return None, gradients.cast_like(grads.targets, direction)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.step.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}, sigma={self.sigma}"
