"""ExcessMTL: more weight for tasks that are far from their optimum."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .. import distributed, gradients
from ..distributed import ProcessGroup
from ..functional._outliers import OUTLIER
from ..gradients import GradientList, Passes, TaskGradients, local_part
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._gradient_memory import GradientMemory
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "excess-mtl",
    paper="He et al. 2024",
    url="https://arxiv.org/abs/2402.02009",
    space="gradient",
    needs=("shared",),
    summary="more weight for tasks far from their optimum, robust to label noise (memory: T × shared)",
)
class ExcessMTL(Aggregation):
    r"""Robust multi-task learning with excess risks (He et al., ICML 2024).

    Tasks that are far from their optimum get more weight. A noisy task with a large loss close to its optimum does
    not, so use it when labels are noisy. It stores one tensor of the size of a gradient per task.

    .. math:: w_i \leftarrow w_i\, e^{\eta E_i / E_i(0)}, \quad \textstyle\sum_i w_i = T, \qquad
       E_i = \sum_p \frac{g_{ip}^2}{\sqrt{S_{ip} + 10^{-7}}}, \quad S_i \leftarrow S_i + g_i^2

    The excess risk :math:`E_i` is a second-order estimate with AdaGrad's diagonal in place of the Hessian. The first
    step sets its unit :math:`E_i(0)`. The weights multiply the losses, heads included.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        lr (float, optional): Rate :math:`\eta` at which the weights follow the excess risks. Default: `1.0`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"aggregated"`.
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
        task_weights: The current weights.

    Returns:
        `backward` adds the gradients to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.ExcessMTL(2)
        >>> _ = balancer.backward([w[0], 5 * w[1]], shared=[w])
        >>> balancer.weights
        tensor([1., 1.])

    References:
        He et al., Robust Multi-Task Learning with Excess Risks. https://arxiv.org/abs/2402.02009
    """

    task_weights: Tensor
    first: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        lr: float = 1.0,
        weighting: Weighting | None = None,
        heads: Heads = "aggregated",
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
        check_number(self, "lr", lr, least=0)
        self.lr = lr
        self.memory = GradientMemory()
        self.register_buffer("task_weights", torch.ones(self.shape))
        self.register_buffer("first", torch.full(self.shape, torch.nan))

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[Tensor, GradientList]:
        present = context.present
        finite = self._all_finite(self._squared_norms(grads, context), context)
        valid = present & finite
        excess = self._excess_risks(grads, context, valid)
        known = ~torch.isnan(self.first)
        # The first step of a task sets its unit and does not change its weight.
        growth = torch.where(known & present, self.lr * excess / self.first.clamp_min(1e-30), 0.0)
        usable = ~(known & (excess > OUTLIER * self.first))  # the sums would never forget such a gradient
        moves = present & usable
        least = torch.finfo(self.task_weights.dtype).tiny  # a weight of 0 would never recover
        logs = (self.task_weights.clamp_min(least).log() + growth).masked_fill(~moves, -torch.inf)
        share = torch.softmax(logs, -1) * (len(self.tasks) - (self.task_weights * ~moves).sum(-1, keepdim=True))
        weights = torch.where(moves, share, self.task_weights)  # an absent task keeps its weight
        if context.learning:
            self.task_weights.copy_(torch.where(finite, weights, self.task_weights))
            starts = ~known & valid & (excess > 0)  # a zero gradient gives no unit
            self.first.copy_(torch.where(starts, excess, self.first))
            self._add_squares(grads, context, valid & usable)
        used = self._times_importance(weights * present)
        return used, gradients.combine(grads.rows, gradients.select_weights(used, grads.slots), grads.stacks)

    def _excess_risks(self, grads: TaskGradients, context: StepContext, valid: Tensor) -> Tensor:
        """Return the excess risks, (…, T), with the squared gradients of this step added to the memory."""
        excess, lead = torch.zeros_like(self.task_weights), len(self.batch_shape)
        for slot, memory, squares in self._squares(grads, context, valid):
            parts = squares / (memory + squares + 1e-7).sqrt()
            excess[..., slot] += parts.flatten(lead).sum(-1) if parts.dim() else parts
        return excess if grads.partial is None else distributed.sum_over_ranks(excess, self.process_group)

    def _add_squares(self, grads: TaskGradients, context: StepContext, valid: Tensor) -> None:
        """Add the squared gradients to the memory."""
        for _, memory, squares in self._squares(grads, context, valid):
            memory.add_(squares)

    def _squares(
        self, grads: TaskGradients, context: StepContext, valid: Tensor
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the task, its memory and its squared gradient, 0 where not `valid`, for each tensor."""
        sums = self.memory.get(grads, len(self.tasks))
        for slot, row in zip(grads.slots, grads.rows, strict=True):
            for memory, grad in zip(sums, row, strict=True):
                if grad is not None:
                    pad = (*valid.shape[:-1], *(1,) * (grad.dim() - len(self.batch_shape)))
                    squares = (local_part(grad).to(memory.dtype) * context.inverse_scale).square()
                    squares = torch.where(valid[..., slot].view(pad), squares, 0.0) * (grads.partial or 1.0)
                    yield slot, memory[slot], squares

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.task_weights.fill_(1.0)
        self.first.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, lr={self.lr}"
