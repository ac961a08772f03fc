"""Base class of the scalarisations with a preference vector."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step
from ..inputs import PerTask, per_task
from .base import Weighting


class PreferenceWeighting(Weighting):
    """Base class that holds the preference. The objective is a fixed function of the losses, without other state."""

    linear: ClassVar[bool] = False
    requires_positive_losses: bool = False
    adaptive: ClassVar[bool] = False  # a line search sees a single function of the losses
    preference: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        preference: PerTask | None = None,
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
        values = per_task("entries of preference", preference, 1.0, self.tasks, self.shape, owner=self)
        if preference is not None and not values.is_meta and not bool((values.amin(-1) >= 0).all() & values.any()):
            raise ValueError(f"preference is {values.tolist()}, expected numbers that are 0 or more, and one above 0")
        self.register_buffer("preference", values)

    def _raise_to_ratio(self, step: Step, losses: Tensor) -> Step:
        """With `max_ratio`, raise small and negative weights: lowering the others to them would leave nothing."""
        if self.max_ratio is None:
            return step
        present, least = torch.isfinite(losses), step.weights.amax(-1, keepdim=True) / self.max_ratio
        weights = torch.where(present, torch.maximum(step.weights, least), 0.0)
        change = (weights - step.weights) * torch.where(present, losses, 0.0)
        return Step(step.objective + change.sum(-1).to(step.objective.dtype), weights)
