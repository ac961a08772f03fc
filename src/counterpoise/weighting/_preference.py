"""Base class of the scalarisations with a preference vector."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from ..distributed import ProcessGroup
from ..inputs import PerTask, per_task
from .base import Weighting


class PreferenceWeighting(Weighting):
    """Base class that holds the preference. The objective is a fixed function of the losses, without other state."""

    linear: ClassVar[bool] = False
    requires_positive_losses: bool = False
    adaptive: ClassVar[bool] = False  # a line search sees a single function of the losses
    has_state: ClassVar[bool] = False
    raises_weights: ClassVar[bool] = True
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
