"""The history of losses and weights, in which a training loop that collapses to one or two tasks is recognised."""

from collections import Counter, deque
from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import NamedTuple

DOMINANT_SHARE = 0.999  # share of all weights above which one or two tasks dominate
COLLAPSE_STEPS = 100  # steps for which they must dominate
COLLAPSE_FALL = 0.01  # how far their losses must fall, absolutely and relative to the fall of every other loss
NEGLIGIBLE = 0.001  # how small they must be next to every other loss; UW-SO gives all the weight to larger ones, too
EARLY_LOOKS, RECENT_LOOKS = 2, 3  # losses are averaged over this number of checks, COLLAPSE_STEPS ago and now
ZERO_LOOKS, ZERO_SHARE = 10, 0.05  # checks, and share of them, in which the dominant loss is exactly 0
ZERO_COLLAPSE_STEPS = 500  # steps for which such a loss must dominate, because it may be 0 in some batches only
JUMP = 100.0  # factor by which weights grow in a check without some tasks
JUMPS = 3  # number of such checks
COLLECTED_ROUNDS = 4  # batches per task in which the tasks of a loop with memory=True are looked for


class Standstill(NamedTuple):
    """Fractions of its earlier values above which a loss is not being trained."""

    of_recent: float  # of its value COLLAPSE_STEPS ago
    of_first: float  # of its first value


STANDSTILL = Standstill(of_recent=0.92, of_first=0.1)
# Stricter, because a large weight may compensate for a short gradient while all tasks are trained.
STANDSTILL_OF_GRADIENTS = Standstill(of_recent=0.97, of_first=0.5)


class LossHistory:
    """The losses and weights of one replica in the checked steps, as far as they are needed."""

    def __init__(self) -> None:
        self.first: list[float] = []  # first finite loss of each task, NaN before
        self.missing_since: dict[int, int] = {}  # since when each given loss is not finite
        self.empty_since: float = inf  # since when no loss is finite
        self.is_complete = False  # whether all first losses are known, and the losses of the last check were finite
        self.dominance = _Dominance(), _Dominance()  # of one task, and of two together
        self.looks = 0  # number of checks
        self.zero_looks: Counter[int] = Counter()  # of them, those in which a task dominated with a loss of exactly 0
        self._complete: list[float] = []  # the weights of the last check with all losses
        self._jumps = 0  # number of checks without some losses in which the weights of others were far larger
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

    def find_jump(self, losses: list[float], weights: list[float]) -> float | None:
        """Record a check; return the factor by which weights grew without some tasks, if it often was large."""
        if self.is_complete:
            self._complete = weights
            return None
        pairs = [(weights[s], usual) for s, usual in enumerate(self._complete) if isfinite(losses[s]) and usual > 0]
        factor = max((now / usual for now, usual in pairs), default=0.0)
        self._jumps += factor >= JUMP
        return factor if factor >= JUMP and self._jumps >= JUMPS else None

    def find_dominant(
        self, step: int, losses: list[float], weights: list[float], standstill: Standstill
    ) -> tuple[int, ...]:
        """Record a check, and return the one or two tasks to which training collapses; none if it does not."""
        self.looks += 1
        largest = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
        enough, present = DOMINANT_SHARE * sum(map(abs, weights)), sum(map(isfinite, losses))
        found: tuple[int, ...] = ()
        for number, dominance in enumerate(self.dominance, 1):
            slots = tuple(sorted(largest[:number]))
            dominates = present > number and sum(weights[slot] for slot in slots) > enough
            dominance.update(step, losses, slots if dominates else ())
            found = found or dominance.collapsed(step, self.first, standstill)
        for slot in self.dominance[0].slots:
            self.zero_looks[slot] += losses[slot] == 0
        return found

    def find_often_zero(self, step: int) -> int | None:
        """Return the task that dominated with a loss of 0 in many checks, or None."""
        needed = max(ZERO_LOOKS, ZERO_SHARE * self.looks)
        often = [slot for slot, count in self.zero_looks.items() if count >= needed]
        return often[0] if often and step >= COLLAPSE_STEPS else None


class _Dominance:
    """The tasks that together have nearly all the weight, and the losses since they have it."""

    def __init__(self) -> None:
        self.slots: tuple[int, ...] = ()
        self._since = 0
        self._looks: deque[tuple[int, list[float]]] = deque()  # step and losses of the last COLLAPSE_STEPS steps

    def update(self, step: int, losses: list[float], slots: tuple[int, ...]) -> None:
        """Record the losses and the dominating tasks of a check."""
        if slots != self.slots:
            self.slots, self._since = slots, step
            self._looks.clear()
        if slots:
            self._looks.append((step, losses))
            while len(self._looks) > 1 and step - self._looks[1][0] >= COLLAPSE_STEPS:
                self._looks.popleft()

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
