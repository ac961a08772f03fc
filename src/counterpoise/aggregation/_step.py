"""Data of one gradient-space step: the weighted losses and the start of the task backward passes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional import Step
from ..functional._gram import can_sync
from ..gradients import TaskRoot
from ..inputs import Losses, Slots, cut_nonfinite


class StepContext(NamedTuple):
    """Inputs of a method beside the task gradients."""

    losses: Tensor  # (…, T), averaged over ranks, NaN where absent
    weights: Tensor  # (…, T), factors on the losses before their gradients are computed
    present: Tensor  # (…, T), bool
    scale: Tensor | None  # factor of a GradScaler on the gradients
    learning: bool  # whether state may change

    @property
    def inverse_scale(self) -> Tensor | float:
        return 1.0 if self.scale is None else 1 / self.scale


class WeighedLosses(NamedTuple):
    """Result of the loss-space part of a step."""

    given: Losses  # as the user passed them
    step: Step  # objective, weights, and gradient of the weighting's parameter
    local: Step  # the same with the weights for the losses of this rank
    values: Tensor  # (…, T), the losses of this rank, NaN where absent
    slots: Slots
    inputs: tuple[Tensor, ...]
    mean: Tensor  # (…, T), the losses averaged over ranks
    fixed: list[Tensor]  # losses that are not balanced, times their factors
    learning: bool


class PreparedStep(NamedTuple):
    """What the backward passes of a step start from."""

    step: Step  # objective, weights, and gradient of the weighting's parameter
    roots: list[TaskRoot]  # start of each task's backward pass
    context: StepContext
    fixed: list[TaskRoot]  # start of the backward pass of the fixed losses


def task_roots(values: Tensor, slots: Slots, inputs: Sequence[Tensor], flow: Tensor) -> list[TaskRoot]:
    """Return the start of the backward pass of each task that is present.

    Args:
        values: the detached losses, (…, T).
        slots: the task of each input; None if one input holds all tasks.
        inputs: the losses as the user passed them.
        flow: the gradient with respect to each loss, (…, T): its weight times the scale.
    """
    absent: Sequence[int] = ()
    if values.dim() == 1 and can_sync(values):
        absent = [slot for slot, finite in enumerate(torch.isfinite(values).tolist()) if not finite]
    if slots is not None:
        columns = flow.unbind(-1)
        return [
            TaskRoot(slot, loss, columns[slot].to(loss.dtype))
            for slot, loss in zip(slots, inputs, strict=True)
            if slot not in absent and loss.requires_grad
        ]
    (losses,) = inputs
    cut_nonfinite(values, slots, (losses,))
    if not losses.requires_grad:
        return []
    rows = torch.diag_embed(flow).to(losses.dtype).unbind(-2)
    return [TaskRoot(slot, losses, row) for slot, row in enumerate(rows) if slot not in absent]
