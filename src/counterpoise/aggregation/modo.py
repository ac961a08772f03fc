"""MoDo: weights on the simplex that move by the gradients of two independent batches."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .. import gradients
from .._state.float32 import state_dtype
from ..distributed import ProcessGroup
from ..functional import modo_weights
from ..functional._outliers import OUTLIER
from ..gradients import GradientList, Passes, TaskGradients
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._gradient_memory import GradientMemory
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "modo",
    paper="Chen et al. 2024",
    url="https://arxiv.org/abs/2305.20057",
    space="gradient",
    needs=("shared",),
    summary="MGDA by small unbiased steps of the weights: for small batches (memory: T × shared)",
)
class MoDo(Aggregation):
    r"""Multi-objective gradient with double sampling (Chen et al., JMLR 2024).

    This is MGDA whose weights take one small step per batch, with an unbiased gradient. Use it in place of MGDA for
    small batches. It stores one gradient per task.

    .. math:: \lambda \leftarrow \Pi_\Delta\bigl(\lambda - \gamma (J_1 J_2^\top \lambda + \rho \lambda)\bigr), \qquad
       d = J_1^\top \lambda

    The rows of :math:`J_1` and :math:`J_2` are the task gradients of two independent batches, and :math:`\Pi_\Delta` is
    the projection on the simplex. The paper draws two or three batches per step; here :math:`J_2` holds the gradients
    of the last step in which each task was present, so that a step needs one batch. The weights of the first step are
    equal. Absent tasks keep their λ, and the others share the rest.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        gamma (float, optional): Step size :math:`\gamma` of the weights, in units of one over a squared gradient norm.
            Default: `0.001`.
        rho (float, optional): Regularisation :math:`\rho` of the weights, at least 0. Default: `0.1`.
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

    Returns:
        `backward` adds the direction to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = cp.MoDo(2, gamma=0.1)
        >>> for _ in range(2):
        ...     _ = balancer.backward([w[0], 2 * w[1]], shared=[w])
        >>> balancer.weights
        tensor([0.5750, 0.4250])

    References:
        Chen et al., Three-Way Trade-Off in Multi-Objective Learning: Optimization, Generalization and
        Conflict-Avoidance. https://arxiv.org/abs/2305.20057
    """

    supports_sharding: ClassVar[bool] = False
    lam: Tensor
    stored: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        gamma: float = 1e-3,
        rho: float = 0.1,
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
        check_number(self, "gamma", gamma, above=0)
        check_number(self, "rho", rho, least=0)
        self.gamma, self.rho = gamma, rho
        self.memory = GradientMemory()
        self.register_buffer("lam", torch.full(self.shape, 1 / len(self.tasks), dtype=state_dtype()))
        self.register_buffer("stored", torch.zeros(self.shape, dtype=torch.bool))  # whether the memory has a gradient

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[Tensor, GradientList]:
        squares = self._squared_norms(grads, context)
        finite, any_present = self._all_finite(squares, context), context.present.any(-1, keepdim=True)
        products, last = self._products(grads, context)
        _, lam = modo_weights(self.lam, products, gamma=self.gamma, rho=self.rho)
        # If the length of a gradient changes by a factor of 1e6 from one step to the next, one of the two is an error.
        compared = context.present & self.stored & (squares > 0)
        least, largest = torch.minimum(squares, last), torch.maximum(squares, last)
        comparable = (~compared | (largest <= OUTLIER**2 * least)).all(-1, keepdim=True)
        lam = torch.where(finite & any_present & comparable, lam, self.lam)
        share = torch.where(context.present, lam, 0.0)
        total = share.sum(-1, keepdim=True)
        count = context.present.sum(-1, keepdim=True).clamp_min(1).to(lam.dtype)
        weights = torch.where(total > 0, share / total, context.present / count)
        if context.learning:
            measured = context.present & (squares > 0) & finite  # a task without a gradient keeps its last one
            self.lam.copy_(lam)
            self.stored |= measured
            self.memory.update_means(
                grads,
                factors=torch.ones_like(squares) * context.inverse_scale,
                rates=measured.to(squares.dtype),
                finite=finite,
                learning=True,
            )
        weights = torch.where(finite, self._times_importance(weights), self._invalid_weight(context))
        return weights, gradients.combine(grads.rows, gradients.select_weights(weights, grads.slots), grads.stacks)

    def _products(self, grads: TaskGradients, context: StepContext) -> tuple[Tensor, Tensor]:
        """Return the products with the gradients of the last step, (…, T, T), NaN on the diagonal if absent.

        The second result is the squared norm of each gradient of the last step, (…, T).
        """
        tasks, given = len(self.tasks), len(grads.rows)
        memories = self.memory.get(grads, tasks)
        last: list[GradientList] = [[memory[slot] for memory in memories] for slot in range(tasks)]
        products = self._sum_over_ranks(gradients.gram_matrix([*grads.rows, *last], len(self.batch_shape)), grads)
        squares = products.diagonal(dim1=-2, dim2=-1)[..., given:]
        products = products[..., :given, given:]
        by_slot = dict(zip(grads.slots, products.unbind(-2), strict=True))
        zero = torch.zeros_like(products[..., 0, :])
        products = torch.stack([by_slot.get(slot, zero) for slot in range(tasks)], -2) * context.inverse_scale
        products.diagonal(dim1=-2, dim2=-1).masked_fill_(~(context.present & self.stored), torch.nan)
        return products, squares

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.memory.clear()
        self.lam.fill_(1 / len(self.tasks))
        self.stored.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gamma={self.gamma}, rho={self.rho}"
