"""MoCo: running means of the gradients and running weights against the bias of stochastic MGDA."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .. import gradients
from .._state.float32 import state_dtype
from ..distributed import ProcessGroup
from ..functional._outliers import outlier_factors
from ..gradients import GradientList, Passes, TaskGradients
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._gradient_memory import GradientMemory
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "moco",
    paper="Fernando et al. 2023",
    url="https://arxiv.org/abs/2210.12624",
    space="gradient",
    needs=("shared",),
    summary="MGDA on running means of the gradients: less bias on small batches (memory: T × shared)",
)
class MoCo(Aggregation):
    r"""Multi-objective gradient correction (Fernando et al., ICLR 2023).

    This is MGDA on running means of the task gradients, which reduces its bias on small batches. It stores one
    gradient per task.

    .. math:: y_i \leftarrow y_i - \tfrac{\beta}{\sqrt k}\Bigl(y_i - \frac{L_i}{\|g_i\|} g_i\Bigr), \qquad
       \lambda \leftarrow \operatorname{softmax}\bigl(\lambda
       - \tfrac{\gamma}{\sqrt k} (Y Y^\top + \rho I)\lambda\bigr), \qquad d = Y^\top \lambda

    Here k is the step number; the rule is that of the authors' code. The direction contains gradients of earlier
    steps, so `weights` is None.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        beta (float, optional): Rate :math:`\beta` of the running means. Default: `0.5`.
        gamma (float, optional): Step size :math:`\gamma` of the weights. Default: `0.1`.
        rho (float, optional): Regularisation :math:`\rho` of the weights. Default: `0.0`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
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

    Attributes:
        lam: The current weights :math:`\lambda`.

    Returns:
        `backward` adds the direction to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.MoCo(2)
        >>> _ = balancer.backward([w[0], 5 * w[1]], shared=[w])
        >>> [round(x, 3) for x in balancer.lam.tolist()]
        [0.574, 0.426]

    References:
        Fernando et al., Mitigating Gradient Bias in Multi-objective Learning: A Provably Convergent Stochastic
        Approach. https://arxiv.org/abs/2210.12624
    """

    supports_sharding: ClassVar[bool] = False
    requires_positive_losses: bool = True
    lam: Tensor
    step: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        beta: float = 0.5,
        gamma: float = 0.1,
        rho: float = 0.0,
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
        check_number(self, "beta", beta, least=0, most=1)
        check_number(self, "gamma", gamma, least=0)
        check_number(self, "rho", rho, least=0)
        self.beta, self.gamma, self.rho = beta, gamma, rho
        self.memory = GradientMemory()
        self.register_buffer("lam", torch.full(self.shape, 1 / len(self.tasks), dtype=state_dtype()))
        self.register_buffer("step", torch.zeros(self.batch_shape))

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[None, GradientList]:
        squares = self._squared_norms(grads, context)
        norms = squares.sqrt()
        measured = context.present & (norms > 0)  # a task without a gradient keeps its mean
        losses = (context.losses * context.weights).to(norms.dtype)
        # The products of the means must not overflow: a step with such a loss changes no state.
        largest = torch.where(measured, losses, 0.0).abs().amax(-1, keepdim=True).to(self.lam.dtype)
        finite = self._all_finite(squares, context) & torch.isfinite(largest.square() * len(self.tasks))
        sqrt_step = (self.step + 1).sqrt().unsqueeze(-1)
        rates = measured * (self.beta / sqrt_step)
        means = self._sum_over_ranks(self.memory.squared_norms(grads, self.shape), grads).sqrt()
        lengths = torch.where(measured, losses.abs(), 0.0)
        rows = self.memory.update_means(
            grads,
            factors=torch.where(measured, losses / norms, 0.0)
            * outlier_factors(lengths, means, rates)
            * context.inverse_scale,
            rates=rates,
            finite=finite,
            learning=context.learning,
        )
        products = self._sum_over_ranks(gradients.gram_matrix(rows, len(self.batch_shape)), grads).to(self.lam.dtype)
        change = (products @ self.lam.unsqueeze(-1)).squeeze(-1) + self.rho * self.lam
        lam = torch.softmax(self.lam - self.gamma / sqrt_step * change, -1)
        any_present = context.present.any(-1, keepdim=True)
        if context.learning:
            self.lam.copy_(torch.where(finite & any_present, lam, self.lam))
            self.step.add_((finite & any_present)[..., 0])
        # A batch without labels gives a zero direction, although the running means are not zero.
        lam = torch.where(finite, lam, self._invalid_weight(context)) * any_present
        factors = self._times_importance(lam)
        direction = gradients.combine(rows, factors if context.scale is None else factors * context.scale)
        return None, gradients.cast_like(grads.targets, direction)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.lam.fill_(1 / len(self.tasks))
        self.step.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}, gamma={self.gamma}, rho={self.rho}"
