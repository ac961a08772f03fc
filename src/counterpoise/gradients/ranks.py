"""Task gradients in a process group: every rank takes part in the gradient of every task."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import distributed
from ..distributed import ProcessGroup
from .passes import ComparisonTargets
from .sharding import is_sharded
from .task_gradients import make_writable
from .types import GradientList, TaskGradients, TaskRoot


def add_missing_roots(roots: Sequence[TaskRoot], tasks: int) -> list[TaskRoot]:
    """Return one root per task, with zero gradients for the tasks that this rank does not have.

    Backward passes through sharded parameters (FSDP) are collective, so each rank must run the same number.
    """
    by_slot = {root.slot: root for root in roots}
    spare = roots[0]
    zeros = torch.zeros_like(spare.grad)
    return [by_slot.get(slot, TaskRoot(slot, spare.loss, zeros)) for slot in range(tasks)]


def average_over_ranks(
    grads: TaskGradients, targets: ComparisonTargets, tasks: int, group: ProcessGroup | None
) -> TaskGradients:
    """Return the gradients of all tasks, averaged over ranks. A task that this rank does not have counts as zero.

    Gradients at features stay local: the batch of all ranks consists of the features of each, and each contributes
    1/world_size of the mean loss.
    """
    index = {slot: row for row, slot in enumerate(grads.slots)}
    rows: list[GradientList] = []
    other_rows: list[GradientList] = []
    for slot in range(tasks):
        row: GradientList = grads.rows[index[slot]] if slot in index else [None] * len(targets.targets)
        if targets.at_features:
            rows.append([*_fill(row, targets.targets)])
        else:
            rows.append(fill_and_average(row, targets.targets, group))
        other_rows.append(grads.other_rows[index[slot]] if slot in index else [None] * len(grads.leaves))
    partial = distributed.world_size(group) ** -2 if targets.at_features else grads.partial
    return grads._replace(slots=tuple(range(tasks)), rows=rows, other_rows=other_rows, partial=partial, stacks=None)


def fill_and_average(row: GradientList, targets: Sequence[Tensor], group: ProcessGroup | None) -> GradientList:
    """Replace missing gradients by zeros and average over ranks. FSDP has averaged sharded gradients already."""
    filled = _fill(row, targets)
    distributed.average_tensors([grad for grad in filled if not is_sharded(grad)], group)
    return [*filled]


def _fill(row: GradientList, targets: Sequence[Tensor]) -> list[Tensor]:
    """Replace missing gradients by zeros, and copy those that an all-reduce could not write to."""
    (filled,) = make_writable(
        [[torch.zeros_like(target) if grad is None else grad for grad, target in zip(row, targets, strict=True)]]
    )
    return [grad for grad in filled if grad is not None]
