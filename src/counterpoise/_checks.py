"""Checks of a training loop that warn about silent failures, once each and at almost no cost.

A balancer looks at the losses and weights of its first steps, and then of about every 24th. On the CPU this reads
two small vectors. On CUDA they are copied to the host asynchronously and evaluated at a later step, so that nothing
waits for the device. Compiled and captured steps are not checked.
"""

import sys
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Sequence
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
STANDSTILL_IN_GRADIENT_SPACE = Standstill(of_recent=0.97, of_first=0.5)


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
            if max(row_weights) > DOMINANT_SHARE * sum(row_weights):  # the sum of absolute values is not smaller
                self._check_collapse(balancer, step, history, row, row_weights)
            else:
                history.dominant = None

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
        standstill = STANDSTILL if in_loss_space else STANDSTILL_IN_GRADIENT_SPACE
        slot = history.find_dominant(step, losses, weights, standstill)
        zero = history.find_often_zero(step)
        if zero is not None:
            task, share = balancer.tasks[zero], history.zero_looks[zero] / history.looks
            self.warn(
                f"zero {task}",
                f"the loss of task {task!r} was 0 in {share:.0%} of the checked training steps, and "
                f"{type(balancer).__name__} gave it nearly all the weight there: the other tasks were hardly trained "
                f"in these steps. Pass None for an absent task",
            )
        if slot is None or (getattr(balancer, "max_ratio", None) or inf) <= 1 / (1 - DOMINANT_SHARE):
            return
        task, name = balancer.tasks[slot], type(balancer).__name__
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
            f"{name} has given task {task!r} more than {DOMINANT_SHARE:.1%} of the weight for {COLLAPSE_STEPS} steps. "
            f"Its loss fell from {history.first[slot]:.2g} to {losses[slot]:.2g}, but the other losses do not fall: "
            f"training collapses to {task!r} alone. A method that {method} cannot balance a loss that reaches "
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
        self.dominant: int | None = None  # the task that had nearly all the weight at the last check
        self.looks = 0  # number of checks
        self.zero_looks: Counter[int] = Counter()  # of them, those in which a task dominated with a loss of exactly 0
        self._since = 0
        self._looks: deque[tuple[int, list[float]]] = deque()  # step and losses of the last COLLAPSE_STEPS steps
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

    def find_dominant(self, step: int, losses: list[float], weights: list[float], standstill: Standstill) -> int | None:
        """Return the task to which training collapses, or None."""
        largest = max(weights)
        if not largest > DOMINANT_SHARE * sum(map(abs, weights)) or sum(map(isfinite, losses)) < 2:
            self.dominant = None
            return None
        slot = weights.index(largest)
        if slot != self.dominant:
            self.dominant, self._since = slot, step
            self._looks.clear()
        self._looks.append((step, losses))
        while len(self._looks) > 1 and step - self._looks[1][0] >= COLLAPSE_STEPS:
            self._looks.popleft()
        self.zero_looks[slot] += losses[slot] == 0
        needed = ZERO_COLLAPSE_STEPS if losses[slot] == 0 else COLLAPSE_STEPS
        if step - self._since < needed or len(self._looks) <= RECENT_LOOKS:
            return None
        smallest, first = self._mean_loss(slot, recent=True), self.first[slot]
        if not 0 <= smallest <= COLLAPSE_FALL * first or first == 0:
            return None
        others = [other for other, loss in enumerate(losses) if other != slot and isfinite(loss)]
        is_negligible = all(NEGLIGIBLE * self._mean_loss(other, recent=True) >= smallest for other in others)
        is_alone = all(self._stands_still(other, smallest / first, standstill) for other in others)
        return slot if is_negligible and is_alone else None

    def find_often_zero(self, step: int) -> int | None:
        """Return the task that dominated with a loss of 0 in many checks, or None."""
        needed = max(ZERO_LOOKS, ZERO_SHARE * self.looks)
        often = [slot for slot, count in self.zero_looks.items() if count >= needed]
        return often[0] if often and step >= COLLAPSE_STEPS else None

    def _stands_still(self, slot: int, fall: float, standstill: Standstill) -> bool:
        """Return whether a loss has hardly decreased, and far less than `fall` since the first step."""
        now, before, first = self._mean_loss(slot, recent=True), self._mean_loss(slot, recent=False), self.first[slot]
        return now >= max(standstill.of_recent * before, standstill.of_first * first, fall / COLLAPSE_FALL * first)

    def _mean_loss(self, slot: int, recent: bool) -> float:
        """Return a loss averaged over the last checks, or over those COLLAPSE_STEPS ago; NaN if it was absent."""
        looks = [losses[slot] for _, losses in self._looks]
        finite = [loss for loss in (looks[-RECENT_LOOKS:] if recent else looks[:EARLY_LOOKS]) if isfinite(loss)]
        return sum(finite) / len(finite) if finite else nan
