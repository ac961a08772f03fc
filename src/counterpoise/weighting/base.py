"""Base class of the loss-space methods: losses in, weights out, no extra backward pass.

One call of a balancer has four steps:

1. `collect_losses` checks the losses and stacks them into one detached vector, NaN for absent tasks.
2. `take_step` averages them over ranks and calls the method's own `weigh`.
3. `weigh` returns a `Step`: the objective, the weights, and the gradient of the learned parameter. `max_ratio` and
   `importance` then change the weights.
4. `Objective` connects the objective with the autograd graph of the losses.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from .. import distributed
from .._checks import Values
from .._closures import check_lbfgs
from .._state.float32 import state_dtype
from ..balancer import Balancer
from ..distributed import ProcessGroup
from ..functional import Step, limit_ratio, raise_to_ratio, rescale_to_sum, weighted_sum
from ..functional._floats import FloatStep
from ..gradients import ComparisonTargets, TaskGradients
from ..gradients.task_gradients import UNREACHED
from ..inputs import (
    Losses,
    PerTask,
    Slots,
    check_flags,
    check_number,
    check_values,
    collect_losses,
    cut_nonfinite,
    mask_unsampled,
)
from ._direct import direct_objective
from ._gradients import Schedule, measure_gradients
from ._memory import recall
from ._objective import Objective, no_loss_has_a_graph
from ._recorded import Recordings

R = TypeVar("R")


class Weighting(Balancer):
    """Base class of the loss-space methods. A subclass holds the state and implements `weigh`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Whether absent tasks enter the statistics with a running mean of their last losses, for
            loops in which a batch does not have all tasks. Default: `False`.
        max_ratio (float, optional): Bound on the ratio of the largest to the smallest weight, before `importance`.
            Beyond it, the weights are no longer invariant to the scale of a loss. Default: `None`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Returns:
        Calling the balancer returns the objective, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> class Largest(cp.Weighting):
        ...     def weigh(self, losses, learning):
        ...         weights = (losses == losses.max()).to(losses.dtype)
        ...         return cp.functional.weighted_sum(weights, losses)
        >>> Largest(2)(torch.tensor([1.0, 3.0]))
        tensor(3.)
    """

    linear: ClassVar[bool] = True  # whether the objective is linear in the losses for fixed weights
    requires_positive_losses: bool = True
    measures_gradients: bool = False  # whether `renew` is called with task gradients, as `schedule` says
    measured_arguments: ClassVar[tuple[str, ...]] = ()  # arguments of `measure`, which other steps ignore
    constant_value: bool = False  # whether the value of the objective does not depend on the losses
    adaptive: ClassVar[bool] = True  # whether the weights change during training
    has_state: ClassVar[bool] = True  # whether training steps change a state
    raises_weights: ClassVar[bool] = False  # whether `max_ratio` raises small weights, which may be 0 or negative
    recent: Tensor | None
    schedule: Schedule

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
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
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        self._recordings = Recordings()
        check_number(self, "max_ratio", max_ratio, least=1, optional=True)
        self.max_ratio = max_ratio
        check_flags(self, memory=memory)
        self.memory = memory
        self._held: Tensor | None = None  # the weights during one step of an optimiser with a closure
        self._in_closure = False
        self._is_combined = False  # whether a gradient-space method uses the weights
        self._has_measured = False  # whether a measurement has found the gradient of a task

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A subclass with another rule must not inherit the shortcut of the old one.
        own = set(vars(cls))
        if own & {"weigh", "observe", "take_step", "_balance"} and not own & {"weigh_floats", "weigh_epoch_floats"}:
            cls.weigh_floats = Weighting.weigh_floats  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # A captured rule has its options as constants. It reads buffers and parameters in every replay.
        if "_recordings" in self.__dict__ and name[0] != "_" and name != "training" and name not in self._buffers:
            self._recordings.clear()

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep | None:
        """Compute one step from finite losses in Python floats, as `weigh` does. None leaves the step to `weigh`.

        An optional shortcut for one loss vector on the CPU. State must not change before an error or None. A method
        that defines it may also be captured as a CUDA graph: `weigh` and `observe` must keep their state in buffers.
        """
        return None

    @property
    def has_float_rule(self) -> bool:
        """Whether the method defines `weigh_floats`."""
        return type(self).weigh_floats is not Weighting.weigh_floats

    @abstractmethod
    def weigh(self, losses: Tensor, learning: bool) -> Step:
        """Compute one step from detached losses (…, T), NaN where absent. State changes only if `learning`."""

    def count_step(self) -> None:
        """Count a training step outside compiled and captured code, and refuse it if a call was forgotten."""

    def observe(self, losses: Tensor) -> None:
        """Update statistics from the losses of a training step, (…, T), NaN where absent. Called before `weigh`."""

    @property
    def normalised(self) -> bool:
        """Whether the weights have a fixed sum, which `importance` and `max_ratio` keep."""
        return False

    @property
    def memory(self) -> bool:
        """Whether absent tasks enter the statistics with a running mean of their last losses."""
        return self.recent is not None

    @memory.setter
    def memory(self, enabled: bool) -> None:
        start = torch.full(self.shape, torch.nan, dtype=state_dtype()) if enabled else None
        self.register_buffer("recent", start)
        self._adjusts_weights = enabled or self.max_ratio is not None or self.importance is not None

    @property
    def learned(self) -> nn.Parameter | None:
        """The parameter that receives the gradient of the step, if the method learns one."""
        return None

    def forward(self, losses: Losses, *, counts: Tensor | None = None, **needs: Any) -> Tensor:
        """Return the objective of the network, a scalar (or one value per replica).

        Its backward pass multiplies the gradient of each loss by its weight and gives the balancer's own parameter its
        gradient. It raises an error if no loss has a graph, because the network would not be trained.

        Args:
            losses (tensor, mapping or sequence of tensors): The losses of the batch.
            counts (Tensor, optional): Number of samples of each loss, (…, T). A task without samples is absent, and
                ranks are averaged in proportion to their counts. Default: `None`.
            needs: Further inputs of a method, such as `kpis` for DTP, or `shared` for gradient norms.
        """
        compiling, checks = torch.compiler.is_compiling(), self._checks
        if counts is None and not compiling and checks.steps + 1 >= checks.next_look and self.learning:
            checks.look_at_graphs(self, losses)
        if counts is None and not needs and not compiling:
            direct = direct_objective(self, losses)
            if direct is not None:
                return direct
        learned, learning = self.learned, self.learning and self._held is None
        losses, fixed = self._split_fixed(losses, record=True)
        values, slots, inputs = collect_losses(
            losses, self.tasks, self.batch_shape, *self._state_device_and_dtype(learned)
        )
        if self.strict:
            check_values(values, slots, self.tasks, counts, positive=self._must_be_positive())
        if counts is not None:
            values = mask_unsampled(values, counts)
        if not inputs:
            values = distributed.to_comm_device(values, self.process_group)
        if self.measures_gradients:
            needs = self._measure_call(values, slots, inputs, counts, learning, **needs)
        step, local = self.take_step(values, counts, learning, **needs)
        self.record(step.weights, values, slots, learning, counts)
        if learned is None and no_loss_has_a_graph(values, inputs, counts):
            # A leaf of zeros keeps the objective differentiable, so that the user's backward() still works.
            slots, inputs = None, (torch.zeros_like(values, requires_grad=True),)
        objective: Tensor = Objective.apply(  # type: ignore[no-untyped-call]
            local, learned, self.linear, slots, cut_nonfinite(values, slots, inputs), *inputs
        )
        return sum(fixed, objective) if fixed else objective

    def _look(self, values: Values, weights: Values) -> None:
        if not (self._in_closure or self._is_combined) and (self.adaptive or self.constant_value):
            check_lbfgs(self, self)
        super()._look(values, weights)

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
        if self.measures_gradients:
            needs |= {"shared": shared, "features": features, "scaler": scaler}
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
        if self.measures_gradients:
            needs |= {"shared": shared, "features": features}
        objective: Tensor = self(losses, **needs)
        return objective.sum() if self.batch_shape else objective

    def renew(self, grads: TaskGradients) -> None:
        """Update the state from the gradients of the unweighted losses; called in the steps that `schedule` selects."""
        raise NotImplementedError(f"{type(self).__name__} must define renew")

    def measure(
        self,
        values: Tensor,
        slots: Slots,
        inputs: Sequence[Tensor],
        place: ComparisonTargets,
        counts: Tensor | None,
        scale: Tensor | None,
        learning: bool,
        **needs: Any,
    ) -> dict[str, Any]:
        """Compute task gradients if they are due, and pass them to `renew`. Return the inputs of `take_step`."""
        given: Iterable[int] = self._slots if slots is None else slots
        if values.is_cpu and not torch.compiler.is_compiling():  # on a GPU, looking at the values would wait
            present = torch.isfinite(values).view(-1, values.shape[-1]).any(0).tolist()
            given = [slot for slot in given if present[slot]]
        # In a process group, ranks with different tasks must measure in the same steps.
        if learning and self.schedule.is_due(None if distributed.is_active(self.process_group) else given):
            grads = measure_gradients(self, values, slots, inputs, place, counts, scale, self.process_group)
            self._check_reached(grads)
            with torch.no_grad():
                self.renew(grads)
        return needs

    def _check_reached(self, grads: TaskGradients) -> None:
        """Raise an error if no measurement has found a gradient yet, and warn about tasks without one."""
        unreached = grads.unreached()
        self._has_measured |= len(unreached) < len(grads.slots)
        if grads.slots and not self._has_measured:
            raise ValueError(UNREACHED)
        self._checks.warn_unreached(self, unreached)

    def _measure_call(
        self,
        values: Tensor,
        slots: Slots,
        inputs: Sequence[Tensor],
        counts: Tensor | None,
        learning: bool,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        scaler: GradScaler | None = None,
        **needs: Any,
    ) -> dict[str, Any]:
        """Call `measure` with the arguments of `forward`, which need shared= or features= in training steps only."""
        if not learning:
            return {name: value for name, value in needs.items() if name not in self.measured_arguments}
        place = ComparisonTargets.of(shared, features, type(self).__name__)
        scale = None if scaler is None else scaler.scale(torch.ones((), device=values.device))
        return self.measure(values, slots, inputs, place, counts, scale, learning, **needs)

    def take_step(self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any) -> tuple[Step, Step]:
        """Return the step on the losses of all ranks, and the step with weights for the losses of this rank.

        The weights of the second are multiplied by this rank's share of the samples. Without a process group, both are
        the same.
        """
        if needs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(map(repr, needs))}")
        if learning and not torch.compiler.is_compiling():  # a counter in the graph would recompile it
            self.count_step()
        held = self._held is not None and self.learning  # such an evaluation changes no state
        mean, share = self._mean_over_ranks(values, counts, learning or held)
        self._last.mean = None if share is None else mean
        step = self._balance(mean, learning) if self._held is None else weighted_sum(self._held, mean)
        if self._in_closure and self._held is None:
            self._held = step.weights
            step = step._replace(objective=weighted_sum(step.weights, mean).objective)
        return (step, step) if share is None else distributed.localise_step(step, share, values)

    def closure(self, evaluate: Callable[[], R]) -> Callable[[], R]:
        """Wrap the closure of an optimiser that evaluates the loss several times per step, such as L-BFGS.

        The first evaluation is a training step of the balancer. The others use its weights, so that a line search sees
        a single function, the weighted sum of the losses.

        Args:
            evaluate (callable): The closure. It computes the losses, calls the balancer and `backward`.

        Returns:
            callable: The wrapped closure, for one step of the optimiser.

        Example:
            >>> import counterpoise as cp
            >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
            >>> balancer, optimizer = cp.UWO(2), torch.optim.LBFGS([x])
            >>> def closure():
            ...     optimizer.zero_grad()
            ...     loss = balancer(x.square())
            ...     loss.backward()
            ...     return loss
            >>> _ = optimizer.step(balancer.closure(closure))
            >>> bool((x.abs() < 1e-3).all())
            True
        """
        held: list[Tensor | None] = [None]

        def evaluate_with_held_weights() -> R:
            self._in_closure, self._held = True, held[0]
            try:
                return evaluate()
            finally:
                held[0] = self._held
                self._in_closure, self._held = False, None

        return evaluate_with_held_weights

    def _balance(self, losses: Tensor, learning: bool) -> Step:
        """Weigh the losses, and apply `memory`, `max_ratio` and `importance`."""
        if learning:
            self.observe(losses)
        if not self._adjusts_weights:
            return self.weigh(losses, learning)
        known = losses if self.recent is None else recall(losses, self.recent, learning)
        step = self.weigh(known, learning)
        present, weights = torch.isfinite(known), step.weights
        if self.max_ratio is not None:
            bound = raise_to_ratio if self.raises_weights else limit_ratio
            weights = bound(weights, present, self.max_ratio)
        if self.importance is not None:
            weights = weights * self.importance.to(weights.device, weights.dtype, non_blocking=True)
        if self.normalised and weights is not step.weights:
            weights = rescale_to_sum(weights, step.weights.sum(-1, keepdim=True))
        objective = step.objective
        if weights is not step.weights:
            change = (weights - step.weights) * torch.where(present, known, 0.0)
            objective = objective + change.sum(-1).to(objective.dtype)
        if self.recent is None:
            return step._replace(objective=objective, weights=weights)
        self._last.remembered = weights
        present = torch.isfinite(losses)  # a remembered task gets no gradient
        gradient = None if step.gradient is None else torch.where(present, step.gradient, 0.0)
        return Step(objective, torch.where(present, weights, 0.0), gradient)

    def _known_weights(self) -> Tensor | None:
        remembered = self._last.remembered
        return self.weights if self.recent is None or remembered is None else remembered.clone()

    def reset(self) -> None:
        super().reset()
        if self.recent is not None:
            self.recent.fill_(torch.nan)
        if self.measures_gradients:
            self.schedule.reset()

    def _mean_over_ranks(self, values: Tensor, counts: Tensor | None, learning: bool) -> tuple[Tensor, Tensor | None]:
        """Return the mean losses over ranks and this rank's share; without a process group, the losses and None."""
        if not (learning and distributed.is_active(self.process_group)):
            return values, None
        return distributed.average_losses(values, counts, self.process_group)

    def _state_device_and_dtype(self, learned: nn.Parameter | None) -> tuple[torch.device | None, torch.dtype | None]:
        """Return the device and the precision of the balancer's state; None for a method without state."""
        state: Tensor | None = learned
        if state is None:
            for name, state in self._buffers.items():
                if state is not None and state.is_floating_point() and name != "importance":
                    break
            else:
                state = None
        return (None, None) if state is None else (state.device, state.dtype)
