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
from ..losses import Losses, check_counts, check_finite, cut_not_finite, gather
from ..objective import Objective


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

        Its `backward` gives each loss its weight, and the balancer's own parameters their gradient. In a process group,
        `counts` (…, T) says how many samples stand behind each local loss, where that differs between ranks. Whatever
        else a method needs (`kpis` for DTP) goes by keyword.
        """
        learned, learning = self.learned, self.learning
        values, slots, inputs = gather(losses, self.tasks, self.batch_shape, self._device(learned))
        if self.strict:
            check_finite(values, slots, self.tasks)
        step, local = self.take_step(values, counts, learning, **needs)
        self._last.weights = step.weights
        if not inputs and learned is None:
            return step.objective.requires_grad_(torch.is_grad_enabled())  # a leaf, so that backward still runs
        return Objective.apply(  # type: ignore[no-any-return, no-untyped-call]
            local, learned, self.linear, slots, cut_not_finite(values, slots, inputs), *inputs
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
        if share is None:
            return step, step
        return step, step._replace(weights=(step.weights * share).to(step.weights.dtype))

    def _mean_over_ranks(self, values: Tensor, counts: Tensor | None, learning: bool) -> tuple[Tensor, Tensor | None]:
        """The losses of the union batch and this rank's share in them; outside a process group, the losses."""
        if counts is not None:
            check_counts(counts, self.shape)
        if not (learning and distributed.active(self.process_group)):
            return values, None
        return distributed.average(values, counts, self.process_group)

    def _device(self, learned: nn.Parameter | None) -> torch.device | None:
        """Where the balancer lives; None if it has no state to live anywhere."""
        if learned is not None:
            return learned.device
        for buffer in self._buffers.values():
            if buffer is not None:
                return buffer.device
        return None
