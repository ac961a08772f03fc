"""The start of the backward pass of each task."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..functional._gram import can_sync
from ..inputs import Slots, cut_nonfinite
from .types import TaskRoot


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
