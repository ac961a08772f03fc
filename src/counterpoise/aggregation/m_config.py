"""M-ConFIG: ConFIG on the momenta of the task gradients."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .. import gradients
from ..distributed import ProcessGroup
from ..functional import mconfig_weights
from ..functional._outliers import outlier_factors
from ..gradients import GradientList, Passes, TaskGradients
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._gradient_memory import GradientMemory
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "m-config",
    paper="Liu et al. 2025",
    url="https://arxiv.org/abs/2408.11104",
    space="gradient",
    needs=("shared",),
    summary="ConFIG on momenta of the gradients: one loss per step is enough (memory: T × shared)",
)
class MConFIG(Aggregation):
    r"""ConFIG with momentum (Liu, Chu and Thuerey, ICLR 2025).

    This is ConFIG on a momentum of each task gradient. It stores one gradient per task.

    .. math:: m_i \leftarrow \beta m_i + (1 - \beta) g_i, \qquad
       d = \operatorname{ConFIG}\Bigl(\frac{m_1}{1 - \beta^{n_1}}, \dots, \frac{m_T}{1 - \beta^{n_T}}\Bigr)

    Here :math:`n_i` counts the steps of task i. An absent task keeps its momentum, which still takes part in the
    direction. The algorithm of the paper passes one loss per step, in turn, at the cost of a plain step:
    `balancer.backward({"a": loss_a}, shared=…)`, then `{"b": loss_b}`. With all losses in each step, all momenta are
    updated. The direction contains gradients of earlier steps, so `weights` is None.

    The paper divides the direction by a running root mean square, as Adam does; use an optimiser without momentum, such
    as `torch.optim.Adam(…, betas=(0.0, 0.999))`, or `counterpoise.functional.mconfig_update`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        beta (float, optional): Decay :math:`\beta` of the momenta, in [0, 1). Default: `0.9`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all; `"auto"` uses a vectorised pass for small shared networks with `features=`,
            and a loop otherwise. Default: `"auto"`.
        ranks (str, optional): What is compared in a process group. `"exact"` averages the task gradients over ranks
            first, `"local"` compares those of each rank. Default: `"exact"`.
        importance (mapping or sequence of float, optional): Importance of each task, in place of the method's uniform
            preference. A mapping may leave out tasks, whose importance is 1. Default: `None`.
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
        `backward` adds the direction to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = cp.MConFIG(2)
        >>> _ = balancer.backward([w[0], None], shared=[w])
        >>> w.grad = None
        >>> _ = balancer.backward([None, 3 * w[1]], shared=[w])  # both momenta take part
        >>> w.grad
        tensor([2.0000, 2.0000])

    References:
        Liu et al., ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks.
        https://arxiv.org/abs/2408.11104
    """

    uses_preference: ClassVar[bool] = True
    supports_sharding: ClassVar[bool] = False
    steps: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        beta: float = 0.9,
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
        check_number(self, "beta", beta, least=0, below=1)
        self.beta = beta
        self.memory = GradientMemory()
        self.register_buffer("steps", torch.zeros(self.shape, dtype=torch.long))

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[None, GradientList]:
        squares = self._squared_norms(grads, context)
        finite = self._all_finite(squares, context)
        measured = context.present & (squares > 0)  # a task without a gradient keeps its momentum
        steps = self.steps + (measured & finite)
        rates = measured.to(squares.dtype) * (1 - self.beta)
        means = self._sum_over_ranks(self.memory.squared_norms(grads, self.shape), grads).sqrt()
        rows = self.memory.update_means(
            grads,
            factors=outlier_factors(squares.sqrt(), means, rates) * context.inverse_scale,
            rates=rates,
            finite=finite,
            learning=context.learning,
        )
        products = self._sum_over_ranks(gradients.gram_matrix(rows, len(self.batch_shape)), grads)
        products = products.to(self.memory.tensors[0].dtype)
        weights = mconfig_weights(products, steps, beta=self.beta, preference=self._preference(products))
        if context.learning:
            self.steps.copy_(steps)
        # A batch without labels gives a zero direction, although the momenta are not zero.
        any_present = context.present.any(-1, keepdim=True)
        weights = torch.where(finite, weights, self._invalid_weight(context)) * any_present
        direction = gradients.combine(rows, weights if context.scale is None else weights * context.scale)
        return None, gradients.cast_like(grads.targets, direction)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.steps.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}"
