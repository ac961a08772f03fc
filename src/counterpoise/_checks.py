"""Checks of a training loop that warn about silent failures, once each and at almost no cost.

A balancer looks at the losses and weights of its first steps, and then of about every 24th. On the CPU this reads
two small vectors. On CUDA they are copied to the host asynchronously and evaluated at a later step, so that nothing
waits for the device. Compiled and captured steps are not checked.
"""

import sys
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan, nan
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from ._optimiser_watch import release_hook, watch_optimisers
from .inputs import Losses, find_constants, has_samples

if TYPE_CHECKING:
    from .balancer import Balancer, StepRecord

FIRST_STEPS = 8  # every one of these steps is checked on the CPU
GAPS = range(16, 33)  # later gaps between two checks are random, so that they do not coincide with a period of the data
GAPS_ON_DEVICE = range(24, 41)
DOMINANT_SHARE = 0.999  # share of all weights above which one task dominates
COLLAPSE_STEPS = 100  # steps for which one task must dominate
COLLAPSE_FALL = 0.01  # how far its loss must fall, absolutely and relative to the fall of every other loss
NEGLIGIBLE = 0.001  # how small it must be next to every other loss; UW-SO gives all the weight to larger ones, too
EARLY_LOOKS, RECENT_LOOKS = 2, 3  # losses are averaged over this number of checks, COLLAPSE_STEPS ago and now
ZERO_LOOKS, ZERO_SHARE = 10, 0.05  # checks, and share of them, in which the dominant loss is exactly 0
ZERO_COLLAPSE_STEPS = 500  # steps for which such a loss must dominate, because it may be 0 in some batches only
MISSING_STEPS = 100  # consecutive steps without a finite loss
NEVER_GIVEN_STEPS = 500  # steps after which a loss that was not given yet is reported
EVALUATIONS = 100  # calls in evaluation mode, before the first training step
REPLICAS = 64  # of a stack of replicas, the first ones are checked
COLLECTED_ROUNDS = 4  # batches per task in which the tasks of a loop with memory=True are looked for
INTERNAL = ("counterpoise", "torch")  # packages whose lines a warning does not name


Values: TypeAlias = Tensor | list[float]
"""Losses or weights: a tensor (…, T), or the numbers of a single vector."""


class Standstill(NamedTuple):
    """Fractions of its earlier values above which a loss is not being trained."""

    of_recent: float  # of its value COLLAPSE_STEPS ago
    of_first: float  # of its first value


STANDSTILL = Standstill(of_recent=0.92, of_first=0.1)
# Stricter, because a large weight may compensate for a short gradient while all tasks are trained.
STANDSTILL_OF_GRADIENTS = Standstill(of_recent=0.97, of_first=0.5)


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
        self._rows: list[_RowHistory] = []
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
        """Count a call in evaluation mode; warn after many without a training step, if the balancer has a state."""
        if self.steps or not torch.is_grad_enabled():
            return
        self._evaluations += 1
        if self._evaluations == EVALUATIONS and balancer.state_dict():
            self.warn(
                "evaluation",
                f"{type(balancer).__name__} was in evaluation mode in all of its first {EVALUATIONS} calls with "
                f"gradients enabled, so that it does not adapt to the losses. For training, call balancer.train(): "
                f"model.eval() also applies to a balancer that is a submodule of the model",
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
        if not self._rows:
            self._rows = [_RowHistory() for _ in values]
        for history, row, row_weights in zip(self._rows, values, shares, strict=True):
            complete = isfinite(sum(row))
            if balancer.requires_positive_losses and not (complete and min(row) >= 0):
                self._check_negative(balancer, row)
            if not (complete and history.is_complete) and history.is_missing(
                step, [s for s in given if not (counted and isnan(row[s]))], row
            ):
                self._check_missing(balancer, step, history)
                self.next_look = self.steps + 1  # to count consecutive steps
            if not complete and balancer._buffers.get("recent") is not None:
                collected = history.collect(row, row_weights)
                if collected is None:
                    self.next_look = self.steps + 1  # it may have the other tasks
                    continue
                row, row_weights = collected
            history.looks += 1
            # The sum of absolute values is not smaller.
            if sum(sorted(row_weights)[-2:]) > DOMINANT_SHARE * sum(row_weights):
                self._check_collapse(balancer, step, history, row, row_weights)
            else:
                history.clear()

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

    def _check_negative(self, balancer: "Balancer", losses: Sequence[float]) -> None:
        lowest = min(filter(isfinite, losses), default=0.0)  # NaN marks an absent task
        if lowest < 0:
            task = balancer.tasks[losses.index(lowest)]
            self.warn(
                "negative",
                f"the loss of task {task!r} is negative ({lowest:.3g}), and {type(balancer).__name__} takes "
                f"logarithms or inverses of losses. Do not shift it above zero: pass it as fixed={{{task!r}: factor}}, "
                f"or use cp.Static or a gradient-space method such as cp.CAGrad",
            )

    def _check_missing(self, balancer: "Balancer", step: int, history: "_RowHistory") -> None:
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

    def _check_collapse(
        self, balancer: "Balancer", step: int, history: "_RowHistory", losses: list[float], weights: list[float]
    ) -> None:
        in_loss_space = hasattr(balancer, "max_ratio")  # the class cannot be imported here: it imports this module
        compares_gradients = not in_loss_space or getattr(balancer, "measures_gradients", False)
        standstill = STANDSTILL_OF_GRADIENTS if compares_gradients else STANDSTILL
        slots = history.find_dominant(step, losses, weights, standstill)
        zero = history.find_often_zero(step)
        if zero is not None:
            task, share = balancer.tasks[zero], history.zero_looks[zero] / history.looks
            self.warn(
                f"zero {task}",
                f"the loss of task {task!r} was 0 in {share:.0%} of the checked training steps, and "
                f"{type(balancer).__name__} gave it nearly all the weight there: the other tasks were hardly trained "
                f"in these steps. Pass None for an absent task",
            )
        if not slots or (getattr(balancer, "max_ratio", None) or inf) <= 1 / (1 - DOMINANT_SHARE):
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


class _RowHistory:
    """What the checks remember of one row of losses."""

    def __init__(self) -> None:
        self.first: list[float] = []  # first finite loss of each task, NaN before
        self.missing_since: dict[int, int] = {}  # since when each given loss is not finite
        self.empty_since: float = inf  # since when no loss is finite
        self.is_complete = False  # whether all first losses are known, and the losses of the last check were finite
        self.dominance = [_Dominance(1), _Dominance(2)]  # of one task, and of two together
        self.looks = 0  # number of checks
        self.zero_looks: Counter[int] = Counter()  # of them, those in which a task dominated with a loss of exactly 0
        self._collected: dict[int, tuple[float, float]] = {}  # loss and weight of each task that `collect` has seen
        self._collected_steps = 0

    def is_missing(self, step: int, given: Sequence[int], losses: list[float]) -> bool:
        """Record the losses; return whether a given loss, or every loss, is not finite."""
        if not self.first or not isfinite(sum(self.first)):
            known = self.first or losses
            self.first = [new if not isfinite(old) else old for old, new in zip(known, losses, strict=True)]
        self.is_complete = isfinite(sum(losses))
        if self.is_complete:
            self.missing_since, self.empty_since = {}, inf
            return False
        missing = [slot for slot in given if not isfinite(losses[slot])]
        self.missing_since = {slot: self.missing_since.get(slot, step) for slot in missing}
        empty = not any(map(isfinite, losses))
        self.empty_since = min(self.empty_since, step) if empty else inf
        return empty or bool(missing)

    def collect(self, losses: list[float], weights: list[float]) -> tuple[list[float], list[float]] | None:
        """Return losses and weights of consecutive batches that have some tasks each; None if more are needed."""
        self._collected |= {s: (loss, weights[s]) for s, loss in enumerate(losses) if isfinite(loss)}
        self._collected_steps += 1
        if len(self._collected) < len(losses) and self._collected_steps < COLLECTED_ROUNDS * len(losses):
            return None
        pairs = [self._collected.get(slot, (nan, 0.0)) for slot in range(len(losses))]
        self._collected, self._collected_steps = {}, 0
        return [loss for loss, _ in pairs], [weight for _, weight in pairs]

    def clear(self) -> None:
        """Note that no task dominates."""
        for each in self.dominance:
            each.slots = ()

    def find_dominant(
        self, step: int, losses: list[float], weights: list[float], standstill: Standstill
    ) -> tuple[int, ...]:
        """Return the one or two tasks to which training collapses; none if it does not."""
        single, _ = [each.update(step, losses, weights) for each in self.dominance]
        for slot in single:
            self.zero_looks[slot] += losses[slot] == 0
        found = (each.collapsed(step, self.first, standstill) for each in self.dominance)
        return next(filter(None, found), ())

    def find_often_zero(self, step: int) -> int | None:
        """Return the task that dominated with a loss of 0 in many checks, or None."""
        needed = max(ZERO_LOOKS, ZERO_SHARE * self.looks)
        often = [slot for slot, count in self.zero_looks.items() if count >= needed]
        return often[0] if often and step >= COLLAPSE_STEPS else None


class _Dominance:
    """The tasks, of a given number, that together have nearly all the weight, and the losses since they have it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.slots: tuple[int, ...] = ()
        self._since = 0
        self._looks: deque[tuple[int, list[float]]] = deque()  # step and losses of the last COLLAPSE_STEPS steps

    def update(self, step: int, losses: list[float], weights: list[float]) -> tuple[int, ...]:
        """Record a check, and return the tasks."""
        largest = sorted(sorted(range(len(weights)), key=weights.__getitem__)[-self.number :])
        enough = sum(weights[slot] for slot in largest) > DOMINANT_SHARE * sum(map(abs, weights))
        slots = tuple(largest) if enough and sum(map(isfinite, losses)) > self.number else ()
        if slots != self.slots:
            self.slots, self._since = slots, step
            self._looks.clear()
        if slots:
            self._looks.append((step, losses))
            while len(self._looks) > 1 and step - self._looks[1][0] >= COLLAPSE_STEPS:
                self._looks.popleft()
        return slots

    def collapsed(self, step: int, first: list[float], standstill: Standstill) -> tuple[int, ...]:
        """Return the tasks if training collapses to them, given the first loss of each task."""
        if not self.slots or len(self._looks) <= RECENT_LOOKS:
            return ()
        last = self._looks[-1][1]
        is_zero = any(last[slot] == 0 for slot in self.slots)
        if step - self._since < (ZERO_COLLAPSE_STEPS if is_zero else COLLAPSE_STEPS):
            return ()
        now = {slot: self._mean_loss(slot, recent=True) for slot in self.slots}
        if not all(0 <= now[slot] <= COLLAPSE_FALL * first[slot] and first[slot] for slot in self.slots):
            return ()
        largest, fall = max(now.values()), max(now[slot] / first[slot] for slot in self.slots)
        others = [other for other, loss in enumerate(last) if other not in self.slots and isfinite(loss)]
        is_negligible = all(NEGLIGIBLE * self._mean_loss(other, recent=True) >= largest for other in others)
        is_alone = all(self._stands_still(other, first[other], fall, standstill) for other in others)
        return self.slots if is_negligible and is_alone else ()

    def _stands_still(self, slot: int, first: float, fall: float, standstill: Standstill) -> bool:
        """Return whether a loss has hardly decreased, and far less than `fall` since the first step."""
        now, before = self._mean_loss(slot, recent=True), self._mean_loss(slot, recent=False)
        return now >= max(standstill.of_recent * before, standstill.of_first * first, fall / COLLAPSE_FALL * first)

    def _mean_loss(self, slot: int, recent: bool) -> float:
        """Return a loss averaged over the last checks, or over those COLLAPSE_STEPS ago; NaN if it was absent."""
        looks = [losses[slot] for _, losses in self._looks]
        finite = [loss for loss in (looks[-RECENT_LOOKS:] if recent else looks[:EARLY_LOOKS]) if isfinite(loss)]
        return sum(finite) / len(finite) if finite else nan
