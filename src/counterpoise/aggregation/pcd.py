"""PCD: the direction nearest to a primary gradient that guarantees progress to every other task."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._state.float32 import state_dtype
from ..distributed import ProcessGroup
from ..functional import pcd_squared_norms, pcd_weights
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from ._task_index import task_index
from .base import Aggregation, Heads, Ranks


@register(
    "pcd",
    paper="Varam and AlHajri 2026",
    url="https://arxiv.org/abs/2606.29521",
    space="gradient",
    needs=("shared",),
    summary="follows a primary task and guarantees a little progress to the others: for one main task with auxiliaries",
)
class PCD(Aggregation):
    r"""Priority-constrained descent (Varam and AlHajri, 2026).

    The direction is the nearest to the gradient of a primary task among those that guarantee each other task a fraction
    τ of the progress along its own gradient. Use it for one main task with auxiliary tasks that must not get worse.

    .. math:: \min_d \tfrac12 \|d - \tilde g_1\|^2 \quad\text{s.t. }
       \langle \tilde g_j, d\rangle \ge \tau \|\tilde g_j\|^2 \text{ for all } j \ne 1

    The gradients :math:`\tilde g_i = g_i / \sqrt{v_i + \epsilon}` are divided by their running norms, and the
    direction is rescaled to the length of the primary gradient. If the constraints contradict each other, it is the
    primary gradient; if the primary task is absent, the mean gradient. See `counterpoise.functional.pcd_weights`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        primary (int or str, optional): Index or name of the primary task. Default: `0`.
        tau (float, optional): Guaranteed fraction :math:`\tau` of the progress, in [0, 1]. Default: `0.02`.
        beta (float, optional): Decay of the running mean :math:`v` of the squared norms, in [0, 1). Default: `0.999`.
        eps (float, optional): Constant :math:`\epsilon` that is added to the running means. Default: `1e-08`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all. `"lean"` never holds the gradients of all tasks. `"auto"` chooses by the
            number of tasks and the size of the shared network. Default: `"auto"`.
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
        `backward` adds the direction to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = cp.PCD(["main", "auxiliary"], primary="main", tau=0.0)
        >>> losses = {"main": w[0], "auxiliary": 4 * w[1] - 3 * w[0]}  # gradients (1, 0) and (−3, 4)
        >>> _ = balancer.backward(losses, shared=[w])
        >>> w.grad  # orthogonal to the second gradient
        tensor([0.8000, 0.6000])

    References:
        Varam and AlHajri, Not All Objectives Are Born Equal: Priority-Constrained Descent for Hierarchical
        Multi-Objective Optimization. https://arxiv.org/abs/2606.29521
    """

    squared_norms: Tensor
    steps: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        primary: int | str = 0,
        tau: float = 0.02,
        beta: float = 0.999,
        eps: float = 1e-8,
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
        check_number(self, "tau", tau, least=0, most=1)
        check_number(self, "beta", beta, least=0, below=1)
        check_number(self, "eps", eps, least=0)
        self.primary = task_index(self, "primary", primary, self.tasks)
        self.tau, self.beta, self.eps = tau, beta, eps
        self.register_buffer("squared_norms", torch.zeros(self.shape, dtype=state_dtype()))
        self.register_buffer("steps", torch.zeros(self.shape, dtype=torch.long))

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        means, steps = pcd_squared_norms(gram, self.squared_norms, self.steps, beta=self.beta)
        if context.learning:
            update = self._may_update(gram, context)
            self.squared_norms.copy_(torch.where(update, means, self.squared_norms))
            self.steps.copy_(torch.where(update, steps, self.steps))
        return pcd_weights(gram, means, tau=self.tau, primary=self.primary, eps=self.eps)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.squared_norms.zero_()
        self.steps.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, primary={self.tasks[self.primary]}, tau={self.tau}, beta={self.beta}"
