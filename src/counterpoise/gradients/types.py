"""Data types of the gradient passes: the start of a task's backward pass, and the gradients of all tasks."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor

GradientList: TypeAlias = list[Tensor | None]
"""One gradient per tensor; None where the task does not depend on it. One row of the Jacobian of the losses."""


class TaskRoot(NamedTuple):
    """The start of one task's backward pass: its loss, and the gradient with respect to that loss."""

    slot: int  # index of the task
    loss: Tensor
    grad: Tensor


class TaskGradients(NamedTuple):
    """The gradients of all tasks that have one, one row per task."""

    targets: list[Tensor]  # the tensors on which tasks are compared
    slots: tuple[int, ...]  # the task of each row
    rows: list[GradientList]  # gradients with respect to `targets`
    other_rows: list[GradientList]  # gradients with respect to `leaves`, if requested
    leaves: list[Tensor]  # the other leaves of the graph, such as the parameters of the heads
    partial: float | None = None  # factor on inner products summed over ranks; None if each rank has whole gradients
    stacks: GradientList | None = None  # the rows stacked to (n, *shape) for each target, if a batched pass made them
    gram: Tensor | None = None  # the inner products of the rows, (n, n), if lean passes computed them without rows
    propagate: Callable[[Tensor], GradientList] | None = (
        None  # with `gram`: weights (n,) to the combination of the rows
    )

    def unreached(self) -> list[int]:
        """Return the tasks without a gradient on any target; none if there are no rows."""
        return [slot for slot, row in zip(self.slots, self.rows, strict=False) if all(grad is None for grad in row)]
