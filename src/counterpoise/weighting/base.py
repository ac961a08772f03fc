"""Loss space: losses in, weights out, no extra backward."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from .. import distributed
from ..balancer import Balancer
from ..functional import Step
from ..inputs import Losses, check_finite, collect_losses, cut_nonfinite, mask_unsampled
from ._objective import Objective


class Weighting(Balancer):
    """Base of the loss-space methods: a subclass holds state and says how to `weigh`."""

    linear: ClassVar[bool] = True  # whether the objective is linear in the losses once its weights are fixed

    @abstractmethod
    def weigh(self, losses: Tensor, learning: bool) -> Step:
        """One step on detached losses (…, T), NaN where absent; changes state only when `learning`."""

    @property
    def learned(self) -> nn.Parameter | None:
        """The coordinates that receive the step's gradient."""
        return None

    def forward(self, losses: Losses, *, counts: Tensor | None = None, **needs: Any) -> Tensor:
        """Returns the objective of the network, a scalar (or one per replica).

        Its `backward` gives each loss its weight, and the balancer's own parameters their gradient. `counts` (…, T)
        says how many samples stand behind each loss: a task with none is absent, and in a process group ranks count by
        them. Whatever else a method needs (`kpis` for DTP) goes by keyword.
        """
        learned, learning = self.learned, self.learning
        values, slots, inputs = collect_losses(losses, self.tasks, self.batch_shape, *self._home(learned))
        if self.strict:
            check_finite(values, slots, self.tasks, counts)
        if counts is not None:
            values = mask_unsampled(values, counts)
        if not inputs:
            values = distributed.to_comm_device(values, self.process_group)
        step, local = self.take_step(values, counts, learning, **needs)
        self._last.weights = step.weights
        if learned is None and _nothing_to_differentiate(values, inputs, counts):  # backward runs nevertheless
            slots, inputs = None, (torch.zeros_like(values, requires_grad=True),)
        return Objective.apply(  # type: ignore[no-any-return, no-untyped-call]
            local, learned, self.linear, slots, cut_nonfinite(values, slots, inputs), *inputs
        )

    def backward(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | None = None,
        scaler: GradScaler | None = None,
        retain_graph: bool = False,
        **needs: Any,
    ) -> Tensor:
        del shared, features  # a weighted sum needs no task gradients
        objective: Tensor = self(losses, **needs)
        total = objective.sum()
        (total if scaler is None else scaler.scale(total)).backward(retain_graph=retain_graph)
        return objective.detach()

    def loss(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        **needs: Any,
    ) -> Tensor:
        del shared, features
        objective: Tensor = self(losses, **needs)
        return objective.sum() if self.batch_shape else objective

    def take_step(self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any) -> tuple[Step, Step]:
        """The step, and the same step as this rank's losses see it: its weights times the rank's share."""
        if needs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(map(repr, needs))}")
        mean, share = self._mean_over_ranks(values, counts, learning)
        step = self.weigh(mean, learning)
        return (step, step) if share is None else distributed.localize_step(step, share, values)

    def _mean_over_ranks(self, values: Tensor, counts: Tensor | None, learning: bool) -> tuple[Tensor, Tensor | None]:
        """The losses of the union batch and this rank's share in them; outside a process group, the losses."""
        if not (learning and distributed.is_active(self.process_group)):
            return values, None
        return distributed.average_losses(values, counts, self.process_group)

    def _home(self, learned: nn.Parameter | None) -> tuple[torch.device | None, torch.dtype | None]:
        """Where the balancer lives, and the precision of its state; None if it has none to live anywhere."""
        held: Tensor | None = learned
        if held is None:
            for held in self._buffers.values():
                if held is not None and held.is_floating_point():
                    break
        return (None, None) if held is None else (held.device, held.dtype)


def _nothing_to_differentiate(values: Tensor, inputs: Sequence[Tensor], counts: Tensor | None) -> bool:
    """Whether all tasks are absent and have no graph: no loss was given, or constants behind which are no samples."""
    if not inputs:
        return True
    if counts is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if any(loss.requires_grad for loss in inputs):
        return False
    return not bool(torch.isfinite(values).any())
