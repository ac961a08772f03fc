"""Checks of a training loop that warn about silent failures, once each and at almost no cost.

A balancer looks at the losses and weights of its first steps, and then of about every 24th. On the CPU this reads
two small vectors. On CUDA they are copied to the host asynchronously and evaluated at a later step, so that nothing
waits for the device. Compiled and captured steps are not checked.
"""

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor

from ._loss_history import COLLAPSE_STEPS, DOMINANT_SHARE, STANDSTILL, STANDSTILL_OF_GRADIENTS, LossHistory
from ._optimiser_watch import release_hook, watch_optimisers
from .inputs import Losses, find_constants, format_names, has_samples

if TYPE_CHECKING:
    from .balancer import Balancer, StepRecord

FIRST_STEPS = 8  # every one of these steps is checked on the CPU
GAPS = range(16, 33)  # later gaps between two checks are random, so that they do not coincide with a period of the data
GAPS_ON_DEVICE = range(24, 41)
MISSING_STEPS = 100  # consecutive steps without a finite loss
NEVER_GIVEN_STEPS = 500  # steps after which a loss that was not given yet is reported
EVALUATIONS = 100  # calls in evaluation mode, before the first training step
REPLICAS = 64  # of a stack of replicas, the first ones are checked
INTERNAL = ("counterpoise", "torch")  # packages whose lines a warning does not name


Values: TypeAlias = Tensor | list[float]
"""Losses or weights: a tensor (…, T), or the numbers of a single vector."""


class BalanceWarning(UserWarning):
    """Warning about a training loop in which balancing fails or has no effect.

    Silence it with `warnings.filterwarnings("ignore", category=cp.BalanceWarning)`, or turn it into an error with
    `"error"` instead of `"ignore"`.
    """


class StepChecks:
    """The checks of one balancer. Copies and pickles of it start anew."""

    def __init__(self) -> None:
        self.steps = 0
        self.next_look = 1
        self._random = Random(0)
        self._warned: set[str] = set()
        self._rows: list[LossHistory] = []
        self._evaluations = 0
        self._broken_fixed: dict[str, int] = {}  # since when each fixed loss is not finite
        self.not_given: set[int | str] | None = None  # tasks and fixed losses not given so far; None before a step
        self._deferred: Values | None = None
        self._pending: tuple[int, Sequence[int], bool, Tensor, torch.cuda.Event] | None = None
        self._watches_optimisers = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def share_warned(self, other: "StepChecks") -> None:
        """Do not repeat the warnings of the checks of another balancer for the same losses."""
        self._warned = other._warned

    def warn(self, kind: str, message: str) -> None:
        """Issue a warning, once for each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, BalanceWarning, stacklevel=_stack_level())

    def note_given(self, tasks: Iterable[int], fixed: Iterable[str]) -> None:
        """Note the tasks and the fixed losses of a training step, while some were never given."""
        if self.not_given:
            self.not_given.difference_update(tasks, fixed)

    def note_evaluation(self, balancer: "Balancer") -> None:
        """Count a call in evaluation mode; warn after many without a training step, if the balancer would adapt."""
        if self.steps or not torch.is_grad_enabled():
            return
        self._evaluations += 1
        if self._evaluations == EVALUATIONS and getattr(balancer, "has_state", True) and balancer.state_dict():
            self.warn(
                "evaluation",
                f"{type(balancer).__name__} was in evaluation mode in all of its first {EVALUATIONS} calls with "
                f"gradients enabled, so that it does not adapt to the losses. For training, call balancer.train(): "
                f"model.eval() also applies to a balancer that is a submodule of the model",
            )

    def warn_unreached(self, balancer: "Balancer", slots: Iterable[int]) -> None:
        """Warn about tasks without a gradient on the tensors that are compared."""
        for task in (balancer.tasks[slot] for slot in slots):
            self.warn(
                f"unreached {task}",
                f"the loss of task {task!r} does not depend on the tensors of shared= or features=, so that "
                f"{type(balancer).__name__} has no gradient from which its weight could follow. Pass it as "
                f"fixed={{{task!r}: factor}}, or list parameters that all tasks share",
            )

    def look_at_graphs(self, balancer: "Balancer", losses: Losses) -> None:
        """Check that every loss of a training step has a graph, if one has. On CUDA, this reads the first step only."""
        for task in find_constants(losses, balancer._order, on_device=self.steps == 0):
            if task not in balancer.fixed:
                self.warn(
                    f"graph {task}",
                    f"the loss of task {task!r} has no graph: it was detached, or computed under torch.no_grad() or "
                    f"from frozen parameters. The task is not trained, but its loss affects the weights of the others. "
                    f"Pass None for an absent task",
                )

    def defer(self, losses: Values) -> None:
        """Check the losses of this step when its weights are known, in `resume`."""
        self._deferred = losses

    def resume(self, balancer: "Balancer", weights: Tensor) -> None:
        """Check a step that was deferred, given its weights; do nothing in other steps."""
        if self._deferred is not None:
            losses, self._deferred = self._deferred, None
            self.look(balancer, losses, weights)

    def look(self, balancer: "Balancer", losses: Values, weights: Values) -> None:
        """Check the losses and weights of step number `steps`, both (…, T) and detached, and plan the next check."""
        on_cpu = isinstance(losses, list) or losses.is_cpu
        gap = self._random.choice(GAPS if on_cpu else GAPS_ON_DEVICE)
        self.next_look = self.steps + (1 if on_cpu and self.steps < FIRST_STEPS else gap)
        self._watch_optimisers(balancer)
        last = balancer._last
        self._check_given(balancer)
        self._check_fixed(last.fixed)
        if isinstance(losses, Tensor):
            if not (on_cpu or _can_copy(losses)):
                return
            losses = _add_other_ranks(_mark_broken(losses, last.counts), last)
        if on_cpu:
            self._evaluate(balancer, self.steps, last.given, last.counts is not None, losses, weights)
        elif isinstance(losses, Tensor) and isinstance(weights, Tensor):
            self._look_asynchronously(balancer, losses, weights)

    def _look_asynchronously(self, balancer: "Balancer", losses: Tensor, weights: Tensor) -> None:
        """Evaluate the copy that an earlier step started, if it has arrived, and start the next one."""
        if self._pending is not None:
            step, given, counted, copy, arrived = self._pending
            if not arrived.query():
                return
            self._evaluate(balancer, step, given, counted, *copy.unbind())
        else:
            dtype = torch.promote_types(losses.dtype, torch.float32)
            copy = torch.empty((2, *losses.shape), dtype=dtype, pin_memory=True)
            arrived = torch.cuda.Event()
        copy[0].copy_(losses, non_blocking=True)
        copy[1].copy_(weights, non_blocking=True)
        arrived.record()
        last = balancer._last
        self._pending = self.steps, last.given, last.counts is not None, copy, arrived

    def _evaluate(
        self,
        balancer: "Balancer",
        step: int,
        given: Sequence[int],
        counted: bool,
        losses: Values,
        weights: Values,
    ) -> None:
        """Check losses and weights on the CPU, row by row for replicas.

        Args:
            balancer: the balancer.
            step: number of the step.
            given: tasks whose loss was given.
            counted: whether numbers of samples were given; a loss of NaN then means that there are none.
            losses: the losses, (…, T).
            weights: the weights, (…, T).
        """
        values, shares = _rows(losses), _rows(weights)
        in_loss_space = _is_in_loss_space(balancer) and not getattr(balancer, "measures_gradients", False)
        if not self._rows:
            self._rows = [LossHistory() for _ in values]
        for history, row, row_weights in zip(self._rows, values, shares, strict=True):
            complete = isfinite(sum(row))
            if balancer.requires_positive_losses and not (complete and min(row) >= 0):
                self._check_negative(balancer, history, row)
            if not (complete and history.is_complete) and history.is_missing(
                step, [s for s in given if not (counted and isnan(row[s]))], row
            ):
                self._check_missing(balancer, step, history)
                self.next_look = self.steps + 1  # to count consecutive steps
            if in_loss_space and balancer._buffers.get("recent") is None:
                self._check_jump(balancer, history, row, row_weights)
            if not complete and balancer._buffers.get("recent") is not None:
                collected = history.collect(row, row_weights)
                if collected is None:
                    self.next_look = self.steps + 1  # it may have the other tasks
                    continue
                row, row_weights = collected
            self._check_collapse(balancer, step, history, row, row_weights)

    def _check_given(self, balancer: "Balancer") -> None:
        last = balancer._last
        if self.not_given is None:
            self.not_given = {*range(len(balancer.tasks)), *balancer.fixed}
        self.note_given(last.given, last.fixed)
        if not self.not_given or self.steps < NEVER_GIVEN_STEPS or last.mean is not None:  # another rank may have it
            return
        for name in sorted(balancer.tasks[each] if isinstance(each, int) else each for each in self.not_given):
            loss = "the fixed loss" if name in balancer.fixed else "the loss of task"
            self.warn(
                f"never given {name}",
                f"{loss} {name!r} was not given in the first {NEVER_GIVEN_STEPS} training steps: check that the loop "
                f"passes it",
            )

    def _check_fixed(self, given: Mapping[str, Tensor]) -> None:
        """Check on the CPU that the fixed losses are finite: others count as absent."""
        for name, loss in given.items():
            if not loss.is_cpu or bool(loss.isfinite().any()):
                self._broken_fixed.pop(name, None)
            elif self.steps - self._broken_fixed.setdefault(name, self.steps) >= MISSING_STEPS:
                self.warn(
                    f"fixed {name}",
                    f"the fixed loss {name!r} was not finite in any check of {MISSING_STEPS} training steps, and "
                    f"is left out of the objective; strict=True raises an error for a loss that is not finite",
                )

    def _check_negative(self, balancer: "Balancer", history: "LossHistory", losses: Sequence[float]) -> None:
        used = history.first or losses if balancer.uses_first_losses else losses
        invalid = [loss for loss, first in zip(losses, used, strict=True) if isfinite(loss) and not first >= 0]
        lowest = min(invalid, default=0.0)  # NaN marks an absent task
        if lowest < 0:
            task = balancer.tasks[losses.index(lowest)]
            self.warn(
                "negative",
                f"the loss of task {task!r} is negative ({lowest:.3g}), and {type(balancer).__name__} takes "
                f"logarithms or inverses of losses. Do not shift it above zero: pass it as fixed={{{task!r}: factor}}, "
                f"or use cp.Static or a gradient-space method such as cp.CAGrad",
            )

    def _check_missing(self, balancer: "Balancer", step: int, history: "LossHistory") -> None:
        if step - history.empty_since + 1 >= MISSING_STEPS:
            message = f"no task had a finite loss in {MISSING_STEPS} consecutive training steps: nothing is trained"
            self.warn("no task", message)
            return
        for slot, since in history.missing_since.items():
            if step - since + 1 >= MISSING_STEPS:
                self.warn(
                    f"missing {slot}",
                    f"the loss of task {balancer.tasks[slot]!r} was not finite in {MISSING_STEPS} consecutive training "
                    f"steps, so the task is not trained. Pass None for a task without labels; strict=True raises an "
                    f"error for a loss that is not finite",
                )

    def _check_jump(
        self, balancer: "Balancer", history: "LossHistory", losses: list[float], weights: list[float]
    ) -> None:
        factor = history.find_jump(losses, weights)
        if factor is not None:
            absent = [task for task, loss in zip(balancer.tasks, losses, strict=True) if not isfinite(loss)]
            self.warn(
                "jump",
                f"without {format_names((*absent,))}, {type(balancer).__name__} gives another task {factor:.3g} times "
                f"its usual weight, because its weights are relative to the tasks that are present. Such steps undo "
                f"what the others do: pass memory=True, which remembers the losses of absent tasks",
            )

    def _check_collapse(
        self, balancer: "Balancer", step: int, history: "LossHistory", losses: list[float], weights: list[float]
    ) -> None:
        in_loss_space = _is_in_loss_space(balancer)
        compares_gradients = not in_loss_space or getattr(balancer, "measures_gradients", False)
        standstill = STANDSTILL_OF_GRADIENTS if compares_gradients else STANDSTILL
        slots = history.find_dominant(step, losses, weights, standstill)
        zero = history.find_often_zero(step)
        if zero is not None:
            task, share = balancer.tasks[zero], history.zero_looks[zero] / history.looks
            bound = ". If the loss does reach 0, bound the weights with max_ratio=" if in_loss_space else ""
            self.warn(
                f"zero {task}",
                f"the loss of task {task!r} was 0 in {share:.0%} of the checked training steps, and "
                f"{type(balancer).__name__} gave it nearly all the weight there: the other tasks were hardly trained "
                f"in these steps. Pass None for an absent task{bound}",
            )
        if not slots or (getattr(balancer, "max_ratio", None) or inf) <= 1 / (1 - DOMINANT_SHARE):
            return
        if not getattr(balancer, "has_state", True) or _others_are_off(balancer, slots):
            return
        tasks, name = " and ".join(repr(balancer.tasks[slot]) for slot in slots), type(balancer).__name__
        noun, possessive = ("task", "Its loss") if len(slots) == 1 else ("tasks", "Their losses")
        before, now = (" and ".join(f"{values[slot]:.2g}" for slot in slots) for values in (history.first, losses))
        advice = ["Give it a fixed weight (fixed=, or cp.Static for all)"]
        if compares_gradients:
            method = "gives short gradients a large weight"
            advice.append("use a method that keeps the scale of the gradients, such as cp.CAGrad")
        else:
            method = "divides by a loss"
            advice.append("compare gradients if it is a term of a PINN (cp.NashMTL)")
        if in_loss_space:
            advice.append("bound the weights with max_ratio=")
        self.warn(
            "collapse",
            f"{name} has given {noun} {tasks} more than {DOMINANT_SHARE:.1%} of the weight for {COLLAPSE_STEPS} steps. "
            f"{possessive} fell from {before} to {now}, but the other losses do not fall: "
            f"training collapses to {tasks} alone. A method that {method} cannot balance a loss that reaches "
            f"zero (a boundary condition, a KL or entropy term, an overfitted task). "
            f"{', '.join(advice[:-1])}, or {advice[-1]}",
        )

    def _watch_optimisers(self, balancer: "Balancer") -> None:
        """Watch the optimiser's steps until one contains the balancer's parameter."""
        if not self._watches_optimisers:
            learned = getattr(balancer, "learned", None)
            if learned is not None and learned.requires_grad:
                self._watches_optimisers = True
                watch_optimisers(balancer, learned)
        release_hook()


def _is_in_loss_space(balancer: "Balancer") -> bool:
    return hasattr(balancer, "max_ratio")  # the class cannot be imported here: it imports this module


def _others_are_off(balancer: "Balancer", slots: Sequence[int]) -> bool:
    """Return whether the importance of all other tasks is 0, so that they are not trained on purpose."""
    if balancer.importance is None:
        return False
    return not any(value for slot, value in enumerate(balancer.importance.tolist()) if slot not in slots)


def _can_copy(losses: Tensor) -> bool:
    """Return whether values can be copied to the host without waiting."""
    return losses.device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


def _rows(values: Values) -> list[list[float]]:
    """Return the values of each replica that is checked."""
    if isinstance(values, list):
        return [values]
    rows: list[list[float]] = values.reshape(-1, values.shape[-1])[:REPLICAS].tolist()
    return rows


def _stack_level() -> int:
    """Return the stack level of the line outside this package and torch that led to a warning."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INTERNAL:
        level, frame = level + 1, frame.f_back
    return level


def _mark_broken(losses: Tensor, counts: Tensor | None) -> Tensor:
    """With `counts`, set losses that are not finite despite samples to infinity; NaN then marks a task without."""
    if counts is None:
        return losses
    return torch.where(has_samples(counts, losses) & ~torch.isfinite(losses), inf, losses)


def _add_other_ranks(losses: Tensor, last: "StepRecord") -> Tensor:
    """Return the losses with those that only other ranks have."""
    if last.mean is None:
        return losses
    if last.counts is not None:
        return torch.where(torch.isnan(losses), last.mean, losses)
    filled = losses.clone()
    for slot in set(range(losses.shape[-1])).difference(last.given):
        filled[..., slot] = last.mean[..., slot]
    return filled
