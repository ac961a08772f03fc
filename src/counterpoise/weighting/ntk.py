"""NTK weights: inverse to the traces of the tasks' neural tangent kernels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import distributed
from .._state.seeds import replica_seeds
from ..distributed import ProcessGroup
from ..functional import Step, ntk_weights, uniform, weighted_sum
from ..functional.gradient_scale import ntk_trace_and_reach
from ..gradients import ComparisonTargets
from ..inputs import PerTask, Slots, check_number, format_names
from ..registry import register
from ._gradients import Schedule
from .base import Weighting


@register(
    "ntk",
    paper="Wang et al. 2022",
    url="https://arxiv.org/abs/2007.14527",
    space="scale",
    needs=("shared", "residuals"),
    summary="weights from the traces of neural tangent kernels, estimated from the residuals of a PINN",
)
class NTK(Weighting):
    r"""Weights from the neural tangent kernel (Wang, Yu and Perdikaris, J. Comput. Phys. 2022).

    The weights equalise the convergence rates of the tasks, which the traces of their kernels measure. Use it for
    physics-informed networks whose losses are means of squared residuals.

    .. math:: \lambda_i = \frac{\sum_j \operatorname{tr} K_j}{\operatorname{tr} K_i}, \qquad
              \operatorname{tr} K_i = \frac1{N_i} \sum_k \|\nabla r_{ik}\|^2

    Pass the residuals :math:`r_i` of each loss as `residuals=`, a mapping from task to tensor, in the steps in which
    weights are renewed (or in all). Each trace is estimated with random signs, in one backward pass per task. The paper
    computes the traces exactly.

    With `batch_shape`, the residuals have the leading dimensions of the losses, and one backward pass per task serves
    all replicas.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        seed (int or sequence of int, optional): Seed of the random signs. With `batch_shape`, one seed per replica;
            a single seed is incremented from replica to replica. Default: `0`.
        every (int, optional): Number of steps between two measurements of the task gradients, each of which costs one
            backward pass per task. The other steps cost what a weighted sum costs. Default: `100`.
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

    Attributes:
        task_weights: The weights λ.

    Returns:
        Calling the balancer returns the weighted sum, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> residuals = {"residual": 3 * w, "boundary": w[:1]}
        >>> losses = {task: r.square().mean() for task, r in residuals.items()}
        >>> balancer = cp.NTK(["residual", "boundary"])
        >>> _ = balancer.backward(losses, shared=[w], residuals=residuals)
        >>> balancer.weights
        tensor([ 1.1111, 10.0000])

    References:
        Wang et al., When and Why PINNs Fail to Train: A Neural Tangent Kernel Perspective.
        https://arxiv.org/abs/2007.14527
    """

    requires_positive_losses: bool = False
    measures_gradients: bool = True
    measured_arguments: ClassVar[tuple[str, ...]] = ("residuals",)
    task_weights: Tensor
    streams: Tensor
    counter: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        seed: int | Sequence[int] = 0,
        every: int = 100,
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
        check_number(self, "every", every, least=1, whole=True)
        seeds, count = replica_seeds(seed, self.batch_shape), len(self.tasks)
        self.seed = seed
        self.schedule = Schedule(every)
        self.register_buffer("task_weights", torch.ones(self.shape))
        # The state of the random signs, on the device for CUDA graphs. It follows from the seed and the schedule.
        self.register_buffer("streams", seeds.unsqueeze(-1) * count + torch.arange(count), persistent=False)
        self.register_buffer("counter", torch.tensor(1 - every), persistent=False)
        self.register_load_state_dict_post_hook(_restore_counter)  # type: ignore[no-untyped-call]

    def measure(
        self,
        values: Tensor,
        slots: Slots,
        inputs: Sequence[Tensor],
        place: ComparisonTargets,
        counts: Tensor | None,
        scale: Tensor | None,
        learning: bool,
        *,
        residuals: Mapping[str, Tensor] | None = None,
        **needs: Any,
    ) -> dict[str, Any]:
        """Renew the weights from the residuals, if they are due."""
        if learning and self.schedule.is_due():
            if not residuals or set(residuals) - set(self.tasks):
                given = "nothing" if residuals is None else format_names(tuple(residuals))
                raise ValueError(f"NTK needs residuals= for {format_names(self.tasks)} in this step, got {given}")
            self._renew(residuals, list(place.targets))
        return needs

    def _renew(self, residuals: Mapping[str, Tensor], targets: list[Tensor]) -> None:
        if self.schedule.held is None:
            self.counter.fill_(self.schedule.steps)
        else:
            self.counter.add_(self.schedule.every)
        absent = torch.full_like(self.task_weights[..., 0], torch.nan)
        given = enumerate(map(residuals.get, self.tasks))
        traces = torch.stack([absent if r is None else self._mean_trace(r, slot, targets) for slot, r in given], -1)
        if distributed.is_active(self.process_group):
            traces, _ = distributed.average_losses(traces, None, self.process_group)
        weights = ntk_weights(traces).to(self.task_weights)
        self.task_weights.copy_(torch.where(torch.isfinite(traces), weights, self.task_weights))

    def _mean_trace(self, residuals: Tensor, slot: int, targets: list[Tensor]) -> Tensor:
        """Return the trace of one task divided by the number of its residuals, per replica."""
        lead = len(self.batch_shape)
        if residuals.shape[:lead] != self.batch_shape:
            raise ValueError(
                f"the residuals of {self.tasks[slot]!r} have shape {tuple(residuals.shape)}, expected the leading "
                f"dimensions {self.batch_shape} of the replicas"
            )
        count = math.prod(residuals.shape[lead:])
        # A separate stream of random signs for each replica, task and step.
        draws = uniform(self.streams[..., slot], self.counter, count).view(residuals.shape)
        signs = torch.where(draws < 0.5, -1.0, 1.0)
        trace, reached = ntk_trace_and_reach(residuals, targets, signs, batch_dims=lead)
        if not reached:
            self._checks.warn_unreached(self, [slot])
        return trace.to(self.task_weights) / count

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(self.task_weights, losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.task_weights.fill_(1.0)
        self.counter.fill_(1 - self.schedule.every)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, every={self.schedule.every}"


def _restore_counter(module: NTK, _: object) -> None:
    """Set the counter of the random signs to the step of the last measurement, which the schedule has loaded."""
    every = module.schedule.every
    module.counter.fill_((module.schedule.steps - 1) // every * every + 1)
