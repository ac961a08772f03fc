"""A balancer: a weighting of the losses, then an aggregation of the task gradients."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from ._state.float32 import Float32State
from .inputs import Losses, task_names

if TYPE_CHECKING:  # not every build of torch has it
    from torch.distributed import ProcessGroup

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Common(TypedDict, total=False):
    """Options that every balancer takes."""

    batch_shape: int | tuple[int, ...]
    """Leading dimensions of the losses: (120,) balances 120 replicas at once, each with its own state."""
    strict: bool
    """Raise on a loss that is not finite instead of leaving its task out. This waits for the device at every step."""
    process_group: ProcessGroup | None
    """Where losses are averaged over ranks; the default group, if one is initialised, when None."""


class StepRecord:
    """What the last step leaves to be read. A plain object: assigning to an nn.Module costs more than the step."""

    weights: Tensor | None = None
    theta: Tensor | list[float] | None = None
    losses: Tensor | list[float] | None = None


class Balancer(Float32State, ABC):
    """Base of all methods. Call it on the losses (loss space), or call `backward` (every method)."""

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tasks = task_names(tasks)
        self.batch_shape = (batch_shape,) if isinstance(batch_shape, int) else tuple(batch_shape)
        self.strict = strict
        self.process_group = process_group
        self._last = StepRecord()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a loss vector: (*batch_shape, T)."""
        return (*self.batch_shape, len(self.tasks))

    @property
    def weights(self) -> Tensor | None:
        """What multiplied each task in the last step, (…, T), detached, on the device; None before the first step."""
        weights = self._last.weights
        return None if weights is None else weights.clone()  # the backward pass may still need it as it is

    @property
    def learning(self) -> bool:
        """Whether a call may change the balancer's state: in training mode, with gradients enabled."""
        return self.training and torch.is_grad_enabled()

    @abstractmethod
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
        """Adds the balanced gradients to `.grad` of the network and of the balancer; returns the objective, detached.

        `shared` or `features` say where gradient-space methods compare tasks; loss-space methods need neither. `scaler`
        is a GradScaler; scaling happens after weighting. Whatever else a method needs (`kpis`, …) goes by keyword.
        """

    @abstractmethod
    def loss(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        **needs: Any,
    ) -> Tensor:
        """A scalar whose own `.backward()` is `backward(losses, …)`, times whatever it was multiplied by before.

        For frameworks that scale, divide and differentiate a loss themselves (Lightning, Transformers, Accelerate).
        """

    def step_end(self, losses_after: Losses, *, counts: Tensor | None = None) -> None:
        """After the optimiser's step: the losses of the same batch, computed again. Only some methods (FAMO) use it."""
        del losses_after, counts

    def epoch_end(self) -> None:
        """After each epoch. Only some methods (DWA, STCH) use it."""

    def reset(self) -> None:
        """Starts over: the state of a new balancer, in place."""
        self._last = StepRecord()

    def param_groups(self, **options: Any) -> list[dict[str, Any]]:
        """Optimiser groups for what the balancer learns: no weight decay, and any other `options` (such as lr)."""
        parameters = list(self.parameters())
        return [{"params": parameters, "weight_decay": 0.0, **options}] if parameters else []

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy averages in the same process group: a group cannot be copied."""
        memo[id(self.process_group)] = self.process_group
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this object alone: a wrapped `backward`, and hooks marked as transient."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            state[name] = OrderedDict((key, hook) for key, hook in state[name].items() if not _is_transient(hook))
        return {name: value for name, value in state.items() if name != "backward"}

    def extra_repr(self) -> str:
        return ", ".join(self.tasks) + (f", batch_shape={self.batch_shape}" if self.batch_shape else "")


def transient_hook(hook: Hook) -> Hook:
    """Mark a hook that copies and pickles of the balancer leave out, such as that of a monitor."""
    hook._counterpoise_transient = True  # type: ignore[attr-defined]
    return hook


def _is_transient(hook: object) -> bool:
    return getattr(hook, "_counterpoise_transient", False)
