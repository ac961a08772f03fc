"""GradNormProxy: weights inverse to the squared gradient norms, updated every few steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import gradnorm_proxy_weights
from ..functional._replay import is_captured
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "gradnorm-proxy",
    paper="Subedi 2026, baseline",
    space="scale",
    needs=("shared",),
    summary="1/‖g‖², updated every 100 steps: the effect of gradient norms alone, at little cost",
)
class GradNormProxy(Aggregation):
    r"""Weights inverse to the squared gradient norms (Subedi 2026, baseline).

    This baseline of the BPGS paper is simpler than `GradNorm`. It compares task gradients only in every `every`-th
    step; all other steps are plain backward passes. Use it to measure the effect of gradient norms alone.

    .. math:: w_i = T \frac{1 / e_i}{\sum_j 1 / e_j}, \qquad e_i = \max(\|g_i\|^2, 10^{-4})

    The weights are 1 before the first update. They multiply the losses, heads included. With `heads="own"`, they do not
    apply to the heads, and every step has one backward pass per task.

    It computes the norms in its own backward passes, those that also train the network, so it cannot be the `weighting`
    of another method; `GradNormalise` with `exponent=2` can.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        every (int, optional): Number of steps between updates of the weights. Default: `100`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"aggregated"`.
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

    Attributes:
        task_weights: The current weights.

    Returns:
        `backward` adds the gradients to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.GradNormProxy(2, every=1)
        >>> _ = balancer.backward([w[0], 3 * w[1]], shared=[w])
        >>> balancer.weights
        tensor([1.8000, 0.2000])

    References:
        Subedi, Bounded Precision-Geometry Scaling for Robust Multi-Task Learning under Loss Scale Mismatch, 2026.
        Authors' code: https://github.com/neryva-lab/spectra
    """

    compares_sizes: bool = True
    task_weights: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        every: int = 100,
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
        check_number(self, "every", every, least=1, whole=True)
        self.every = every
        self.register_buffer("task_weights", torch.ones(self.shape))
        self._steps = 0

    def needs_task_gradients(self, context: StepContext) -> bool:
        return self.heads == "own" or self._is_update_step()

    def multipliers(self, losses: Tensor, learning: bool) -> Tensor | None:
        if learning and self.every > 1 and is_captured(losses):
            raise RuntimeError(
                "GradNormProxy counts its steps in Python, so that a CUDA graph would never update its weights: "
                "capture cp.GradNormalise(tasks, exponent=2) under balancer.schedule.hold, or pass every=1"
            )
        self._steps += learning
        return None if self.heads == "own" or self._is_update_step() else self.task_weights

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        if not self._is_update_step():  # with heads="own", whose gradients the weights must not change
            return self.task_weights.to(gram.dtype)
        weights = gradnorm_proxy_weights(gram)
        if context.learning:
            due = context.present & self._may_update(gram, context)
            self.task_weights.copy_(torch.where(due, weights, self.task_weights))
        return weights

    def _is_update_step(self) -> bool:
        return self._steps % self.every == 0

    def get_extra_state(self) -> dict[str, int]:
        return {"steps": self._steps}

    def set_extra_state(self, state: Any) -> None:
        self._steps = int(state["steps"])

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self._steps = 0
        self.task_weights.fill_(1.0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, every={self.every}"
