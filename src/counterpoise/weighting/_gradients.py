"""Sizes of the task gradients, for weightings that are computed from them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import distributed, gradients
from ..distributed import ProcessGroup
from ..functional import update_log_norms
from ..gradients import ComparisonTargets, GradientList, TaskGradients
from ..inputs import Slots


class Schedule(nn.Module):
    """Count the training steps; measurements are due in the first one and in every `every`-th after it.

    If batches do not have all tasks, the steps with each task are counted: otherwise a task that is in every second
    batch would never be measured.

    The counts are Python numbers. A CUDA graph repeats the step that it has captured, so capture one graph with a
    measurement and one without, under `hold`, and let `is_due` select the graph of each step.
    """

    def __init__(self, every: int) -> None:
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}, expected a number of steps, 1 or more")
        self.every = every
        self.steps = 0
        self.ages: dict[int, int] = {}  # number of steps with each task since its last measurement, inclusive
        self.held: bool | None = None  # the answer of `is_due` under `hold`

    def is_due(self, given: Iterable[int] | None = None) -> bool:
        """Count a step, and return whether a measurement is due in it.

        Args:
            given: the tasks of the step. By default, each step counts for all tasks.
        """
        if self.held is not None:
            return self.held
        due = self.steps % self.every == 0
        if given is not None:
            slots = tuple(given)
            due = any(self.ages.get(slot, self.every) >= self.every for slot in slots)
            self.ages |= {slot: 1 if due else self.ages[slot] + 1 for slot in slots}
        self.steps += 1
        return due

    def reset(self) -> None:
        """Forget all steps."""
        self.steps, self.ages = 0, {}

    @contextmanager
    def hold(self, due: bool) -> Iterator[None]:
        """Measure in every step (`True`) or in none (`False`), without counting steps."""
        before, self.held = self.held, due
        try:
            yield
        finally:
            self.held = before

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "ages": dict(self.ages)}

    def set_extra_state(self, state: Any) -> None:
        self.steps, self.ages = int(state["steps"]), dict(state.get("ages", {}))


def measure_gradients(
    caller: object,
    values: Tensor,
    slots: Slots,
    inputs: Sequence[Tensor],
    place: ComparisonTargets,
    counts: Tensor | None,
    scale: Tensor | None,
    group: ProcessGroup | None,
) -> TaskGradients:
    """Return the gradients of the losses, averaged over ranks, as dense tensors. The graph is kept.

    Args:
        caller: the balancer, for which compiled graphs are checked once.
        values: the detached losses, (…, T).
        slots: the task of each input; None if one input holds all tasks.
        inputs: the losses as the user passed them.
        place: the tensors with respect to which gradients are computed.
        counts: number of samples of each loss.
        scale: factor of a GradScaler, applied during the backward passes and removed from the results.
        group: the process group.
    """
    if place.sharded:
        raise ValueError(
            "gradient norms of sharded parameters (FSDP) are not supported: pass features= instead, or use cp.GradNorm"
        )
    replicas = values.shape[:-1]
    for target in place.targets:
        if target.shape[: len(replicas)] != replicas:
            raise ValueError(
                f"a tensor of shape {tuple(target.shape)} is in shared= or features=, expected the leading dimensions "
                f"{tuple(replicas)} of the replicas (batch_shape): stack the parameters of the networks"
            )
    flow, distributes = torch.ones_like(values), distributed.is_active(group)
    if distributes:
        flow = distributed.average_losses(values, counts, group)[1].to(flow)
    roots = gradients.task_roots(values, slots, inputs, flow if scale is None else flow * scale)
    targets = list(place.targets)
    gradients.check_retained(caller, roots, targets)
    rows: list[GradientList] = [
        [*map(_dense, torch.autograd.grad(root.loss, targets, root.grad, retain_graph=True, allow_unused=True))]
        for root in roots
    ]
    if scale is not None:
        rows = [[None if grad is None else grad / scale for grad in row] for row in rows]
    grads = TaskGradients(targets, tuple(root.slot for root in roots), rows, [[] for _ in rows], [])
    return gradients.average_over_ranks(grads, place, values.shape[-1], group) if distributes else grads


def _dense(grad: Tensor | None) -> Tensor | None:
    """Return the gradient of `nn.Embedding(sparse=True)` as a dense tensor, and any other gradient itself."""
    return grad if grad is None or grad.layout is torch.strided else grad.to_dense()


def gradient_norms(grads: TaskGradients, shape: tuple[int, ...], group: ProcessGroup | None) -> Tensor | None:
    """Return the norm of each task's gradient, (…, T), NaN for a task without one; None without any gradient."""
    if not any(grad is not None for row in grads.rows for grad in row):
        return None
    squares = gradients.squared_norms(grads.rows, len(shape) - 1)
    if grads.partial is not None:
        squares = distributed.sum_over_ranks(squares, group) * grads.partial
    return scatter(squares.sqrt(), grads.slots, shape[-1])


def update_running_norms(
    log_norms: Tensor, grads: TaskGradients, group: ProcessGroup | None, *, beta: float = 0.9
) -> None:
    """Update the running means of the logarithms of the gradient norms, (…, T), in place."""
    norms = gradient_norms(grads, tuple(log_norms.shape), group)
    if norms is not None:
        log_norms.copy_(update_log_norms(log_norms, norms.to(log_norms), beta=beta))


def scatter(columns: Tensor, slots: Sequence[int], tasks: int) -> Tensor:
    """Return the columns of (…, n) at the positions of their tasks in (…, T), NaN for other tasks."""
    by_slot = dict(zip(slots, columns.unbind(-1), strict=True))
    missing = torch.full_like(columns[..., 0], torch.nan)
    return torch.stack([by_slot.get(slot, missing) for slot in range(tasks)], -1)
