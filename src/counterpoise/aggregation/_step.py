"""Data of one gradient-space step: the weighted losses and the start of the backward passes."""

from typing import NamedTuple

from torch import Tensor

from ..functional import Step
from ..gradients import TaskRoot
from ..inputs import Losses, Slots


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
