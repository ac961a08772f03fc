"""The base class of all methods."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from ._checks import StepChecks, Values
from ._state.float32 import Float32State
from ._transforms import refuse_transforms
from .inputs import (
    Losses,
    PerTask,
    Slots,
    check_flags,
    fixed_terms,
    format_names,
    has_custom_names,
    importance_factors,
    split_fixed,
    split_fixed_tasks,
)

if TYPE_CHECKING:  # some builds of torch have no distributed package
    from torch.distributed import ProcessGroup

    from .weighting import Static

Hook = TypeVar("Hook", bound=Callable[..., Any])


class StepRecord:
    """Results of the last step. A plain object, because assigning attributes to an nn.Module is slower than a step."""

    theta: Tensor | list[float] | None = None
    losses: Tensor | list[float] | None = None
    dtype: torch.dtype = torch.float32  # of the losses, if weights and values are stored as lists
    given: Sequence[int] = ()  # tasks whose loss was given, though possibly not finite
    counts: Tensor | None = None  # the numbers of samples, if given
    mean: Tensor | None = None  # the losses averaged over ranks, in a process group
    remembered: Tensor | None = None  # with `memory`, the weights including those of absent tasks
    fixed: Mapping[str, Tensor] = MappingProxyType({})  # the given losses that are not balanced, as given
    _weights: Tensor | list[float] | None = None
    _values: Tensor | list[float] | None = None

    @property
    def weights(self) -> Tensor | None:
        """The weights of the tasks, converted to a tensor when they are asked for."""
        if isinstance(self._weights, list):
            self._weights = torch.tensor(self._weights, dtype=self.dtype)
        return self._weights

    @weights.setter
    def weights(self, weights: Tensor | None) -> None:
        self._weights = weights

    @property
    def values(self) -> Tensor | None:
        """The losses as given, NaN for absent tasks."""
        if isinstance(self._values, list):
            self._values = torch.tensor(self._values, dtype=self.dtype)
        return self._values

    @values.setter
    def values(self, values: Tensor | None) -> None:
        self._values = values


class Balancer(Float32State, ABC):
    """Base class of all methods.

    A balancer is an `nn.Module` that combines the losses of several tasks. Loss-space methods (`Weighting`) are called
    on the losses and return a scalar to differentiate. `backward` works for every method, including the gradient-space
    methods (`Aggregation`), which combine the gradients of the tasks.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses. `(120,)` balances 120 independent
            models at once, each with its own state. Default: `()`.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, after balancing. A
            mapping may leave out tasks. Default: `None`, 1 for all.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and are not balanced, by
            name. Default: `None`.
        strict (bool, optional): Raise an error for a loss that is not finite, instead of treating its task as absent,
            and for a negative loss if the method takes logarithms or inverses. This synchronises with the device in
            every step. Default: `False`.
        process_group (ProcessGroup, optional): The group over which losses are averaged; `None` selects the default
            group if one is initialised. Default: `None`.

    Attributes:
        tasks (tuple of str): Names of the tasks that are balanced.
        fixed (dict of str to float): Factors of the fixed losses.
        batch_shape (tuple of int): Leading dimensions of the losses.

    Raises:
        TypeError: If `tasks` is neither a number nor a sequence of names.
        ValueError: If there are no tasks, or if two have the same name.

    Example:
        >>> import counterpoise as cp
        >>> weight = torch.ones(2, requires_grad=True)
        >>> balancer: cp.Balancer = cp.UWO(["seg", "depth"])
        >>> losses = {"seg": 2 * weight.sum(), "depth": 5 * weight.sum()}
        >>> balancer.backward(losses, shared=[weight])
        tensor(2.)
        >>> balancer.weights
        tensor([0.2500, 0.1000])
        >>> weight.grad
        tensor([1., 1.])
    """

    requires_positive_losses: bool = False  # whether the method takes logarithms or inverses of losses
    uses_first_losses: ClassVar[bool] = False  # whether these are only the first ones
    importance: Tensor | None

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tasks, self.fixed, self._order = split_fixed_tasks(tasks, fixed)
        self.batch_shape = (batch_shape,) if isinstance(batch_shape, int) else tuple(batch_shape)
        self._slots = range(len(self.tasks))
        check_flags(self, strict=strict)
        self.strict = strict
        self.process_group = process_group
        self.register_buffer("importance", importance_factors(importance, self.tasks), persistent=False)
        self._last = StepRecord()
        self._checks = StepChecks()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the losses, (*batch_shape, T)."""
        return (*self.batch_shape, len(self.tasks))

    @property
    def weights(self) -> Tensor | None:
        """Weights of the tasks in the last step, (…, T), detached, on the device; None before the first step.

        Also None after a step of a method whose direction is not a weighted sum of task gradients.
        """
        weights = self._last.weights
        return None if weights is None else weights.clone()  # the backward pass may still need the original

    @property
    def losses(self) -> Tensor | None:
        """Losses of the tasks in the last step, (…, T), detached, NaN for absent tasks; None before the first step."""
        values = self._last.values
        return None if values is None else values.clone()

    @property
    def learning(self) -> bool:
        """Whether a call may change the state: in training mode with gradients enabled."""
        return self.training and torch.is_grad_enabled()

    def _must_be_positive(self) -> bool | Tensor:
        """Return whether this step needs losses that are not negative, for all of them or for each."""
        return self.requires_positive_losses

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
        """Add the balanced gradients to `.grad` of the network's and the balancer's parameters.

        Args:
            losses (Losses): A tensor (…, T), or one scalar per task, by name or in the order of the tasks. None and
                NaN mark an absent task.
            shared (iterable of Tensor, optional): The parameters that all tasks share, on which gradient-space methods
                compare task gradients. Loss-space methods ignore it. Default: `None`.
            features (Tensor, optional): The representation that all heads take as input. Gradient-space methods compare
                task gradients there, or on `shared` through it. Default: `None`.
            scaler (GradScaler, optional): A gradient scaler, applied after weighting. Default: `None`.
            retain_graph (bool, optional): Keep the graph for another backward pass. Default: `False`.
            **needs: What else the method requires, for example `kpis` for DTP; see `describe(name).needs`.

        Returns:
            Tensor: The objective, detached.
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
        """Return a scalar whose `.backward()` does what `backward(losses, …)` does.

        For frameworks that scale, divide and differentiate a loss themselves (Lightning, Transformers, Accelerate). A
        factor on the scalar multiplies all gradients.

        Args:
            losses (Losses): As in `backward`.
            shared (iterable of Tensor, optional): As in `backward`. Default: `None`.
            features (Tensor or sequence of Tensor, optional): As in `backward`. Default: `None`.
            **needs: As in `backward`.

        Returns:
            Tensor: The scalar to differentiate.
        """

    def step_end(self, losses_after: Losses, *, counts: Tensor | None = None) -> None:
        """Update methods that use the losses after the optimiser's step (FAMO); other methods do nothing.

        Args:
            losses_after (Losses): The losses of the same batch, computed again.
            counts (Tensor, optional): Number of samples behind each loss, (…, T). Default: `None`.
        """
        del losses_after, counts

    def epoch_end(self) -> None:
        """Update methods that use epochs (DWA, STCH); other methods do nothing. Call it after every epoch."""

    def reset(self) -> None:
        """Restore the state of a new balancer, in place."""
        self._last = StepRecord()
        self._checks = StepChecks()

    def frozen(self) -> Static:
        """Return a `Static` balancer with the weights of the last step, for example for a second stage of training.

        A call in evaluation mode counts as a step, so that this should come before a validation with the balancer.

        Raises:
            RuntimeError: If there are no weights yet, or if the method has none.
            ValueError: If a task was absent in the last step, so that its weight is unknown.

        Example:
            >>> import counterpoise as cp
            >>> balancer = cp.UWO(["seg", "depth"])
            >>> _ = balancer(torch.tensor([2.0, 4.0]))
            >>> balancer.frozen().weight
            tensor([0.5000, 0.2500])
        """
        from .weighting import Static  # the methods import this module

        weights = self._known_weights()
        if weights is None:
            reason = "run a training step first"
            if self._last.values is not None:
                reason = "its direction is not a weighted sum of task gradients"
            raise RuntimeError(f"{type(self).__name__} has no weights to freeze: {reason}")
        values = self._last.values
        absent = torch.zeros_like(weights, dtype=torch.bool) if values is None else ~torch.isfinite(values)
        for slot, task in enumerate(self.tasks):
            if bool((absent & (weights == 0))[..., slot].any()):
                raise ValueError(f"task {task!r} was absent in the last step: call frozen() after a step that has it")
        return Static(
            self._order,
            weights,
            fixed=self.fixed or None,
            batch_shape=self.batch_shape,
            strict=self.strict,
            process_group=self.process_group,
        )

    def _known_weights(self) -> Tensor | None:
        return self.weights

    def param_groups(self, **options: Any) -> list[dict[str, Any]]:
        """Return optimiser groups for the balancer's parameters.

        Args:
            **options: Options of the group, such as `lr`. The weight decay is 0 unless given.

        Returns:
            list of dict: One group, or none if the method has no parameters.
        """
        parameters = list(self.parameters())
        return [{"params": parameters, "weight_decay": 0.0, **options}] if parameters else []

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything but the process group, which cannot be copied and is shared with the original."""
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

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Note the method and the tasks in the metadata of the state, which adds no keys and is saved with it."""
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata.update(method=type(self).__name__, tasks=list(self.tasks))
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load a state, and forget the last step. Refuse the state of another method or of other tasks.

        A state without that information is accepted.
        """
        mismatch = self._mismatch(local_metadata.get("method"), local_metadata.get("tasks"))
        if mismatch:
            place = f" of {prefix[:-1]!r}" if prefix else ""
            error_msgs.append(f"the state{place} {mismatch}. load_state_dict(dict(state)) skips this check")
            return
        self._last = StepRecord()
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _mismatch(self, method: str | None, tasks: Sequence[str] | None) -> str | None:
        """Return how a saved state differs from this balancer, or None. Unnamed tasks match any names."""
        if method is not None and method != type(self).__name__:
            return f"was saved by {method}, expected {type(self).__name__}"
        if tasks is None or tuple(tasks) == self.tasks:
            return None
        if len(tasks) != len(self.tasks):
            return f"has {len(tasks)} tasks, expected {len(self.tasks)}"
        if not has_custom_names(tuple(tasks)) or not has_custom_names(self.tasks):
            return None
        return f"has the tasks {format_names(tuple(tasks))}, expected {format_names(self.tasks)} in this order"

    def record(
        self, weights: Tensor, values: Tensor, slots: Slots, learning: bool, counts: Tensor | None = None
    ) -> None:
        """Store the losses and weights of a step, and check a training step for silent failures."""
        last, compiling = self._last, torch.compiler.is_compiling()
        # In a compiled step, an output that is a view of an input costs more than a copy.
        last.weights, last.values = weights, values.clone() if compiling else values
        last.given, last.counts = self._slots if slots is None else slots, None if compiling else counts
        if learning and not compiling:
            checks = self._checks
            checks.steps += 1
            if checks.not_given:
                checks.note_given(last.given, last.fixed)
            if checks.steps >= checks.next_look:
                self._look(values, weights)
        elif not self.training and not compiling:
            self._checks.note_evaluation(self)

    def record_floats(self, weights: list[float], values: list[float], dtype: torch.dtype, learning: bool) -> None:
        """Store the losses and weights of a step that has them as Python floats, as `record` does."""
        last = self._last
        last._weights, last._values, last.dtype = weights, values, dtype
        last.given, last.counts = self._slots, None
        if learning:
            checks = self._checks
            checks.steps += 1
            if checks.not_given:
                checks.note_given(self._slots, ())
            if checks.steps >= checks.next_look:
                self._look(values, weights)
        elif not self.training:
            self._checks.note_evaluation(self)

    def _look(self, values: Values, weights: Values) -> None:
        """Check the losses and weights of this step."""
        self._checks.look(self, values, weights)

    def _split_fixed(self, losses: Losses, *, record: bool = False) -> tuple[Losses, list[Tensor]]:
        """Return the losses to balance, and the fixed ones times their factors; `record` stores the latter."""
        refuse_transforms(type(self).__name__)
        if not self.fixed:
            return losses, []
        balanced, given = split_fixed(losses, self.fixed, self._order)
        terms = fixed_terms(given, self.fixed, self.batch_shape, self.strict)
        if record:
            self._last.fixed = {name: loss.detach() for name, loss in given.items()}
        return balanced, terms

    def extra_repr(self) -> str:
        return ", ".join(self.tasks) + (f", batch_shape={self.batch_shape}" if self.batch_shape else "")


def transient_hook(hook: Hook) -> Hook:
    """Mark a hook that copies and pickles of the balancer leave out, such as that of a monitor."""
    hook._counterpoise_transient = True  # type: ignore[attr-defined]
    return hook


def _is_transient(hook: object) -> bool:
    return getattr(hook, "_counterpoise_transient", False)
