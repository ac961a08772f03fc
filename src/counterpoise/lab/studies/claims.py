"""The paper's claims as data: a sentence, its source in the paper, and a statement that can be checked.

A statement compares a quantity with a number: `score("BPGS", "×1000") - score("Kendall", "×1000") > 0`,
`value_range(…) < 0.01` or `score(…).near(0.637)`. `&` joins several statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Lookup = Callable[["Score"], Values]

VALUE_TOLERANCE = 0.003  # allowed difference from the paper's mean: rounding and floating-point noise


@dataclass(frozen=True)
class Quantity:
    """A number computed from the scores of some cells of a table."""

    def evaluate(self, lookup: Lookup) -> Values:
        """Compute the quantity from the values that `lookup` returns for each cell."""
        raise NotImplementedError

    def scores(self) -> Iterator[Score]:
        """Yield the cells that the quantity is computed from."""
        raise NotImplementedError

    def with_method(self, method: str, instead: str) -> Quantity:
        """Return the same quantity with `method` replaced by `instead`."""
        raise NotImplementedError

    def __sub__(self, other: Quantity) -> Quantity:
        return Combined("-", (self, other))

    def __truediv__(self, other: Quantity) -> Quantity:
        return Combined("/", (self, other))

    def __gt__(self, bound: float) -> Statement:
        return Statement((Comparison(self, ">", bound),))

    def __lt__(self, bound: float) -> Statement:
        return Statement((Comparison(self, "<", bound),))

    def near(self, value: float, tolerance: float = VALUE_TOLERANCE) -> Statement:
        """State that the quantity differs from `value` by at most `tolerance`."""
        return Statement((Comparison(self, "near", value, tolerance),))

    def within_factor(self, value: float, factor: float) -> Statement:
        """State that the quantity is at most `factor` times as large or as small as `value`. For errors."""
        return Statement((Comparison(self, "factor", value, factor),))


@dataclass(frozen=True)
class Score(Quantity):
    """The score of a method under a condition: the mean over seeds or their standard deviation (ddof 0)."""

    method: str
    condition: str
    metric: str = "macro"
    statistic: Literal["mean", "sd"] = "mean"

    def evaluate(self, lookup: Lookup) -> Values:
        return lookup(self)

    def scores(self) -> Iterator[Score]:
        yield self

    def with_method(self, method: str, instead: str) -> Quantity:
        return replace(self, method=instead) if self.method == method else self


OPERATIONS: dict[str, Callable[..., Values]] = {
    "-": np.subtract,
    "/": np.divide,
    "mean": lambda *values: np.mean(values, axis=0),
    "range": lambda *values: np.max(values, axis=0) - np.min(values, axis=0),
    "norm": lambda *values: np.sqrt(np.sum(np.square(values), axis=0)),
    "variation": lambda *values: np.std(values, axis=0) / np.abs(np.mean(values, axis=0)),
}


@dataclass(frozen=True)
class Combined(Quantity):
    """An operation on other quantities, by its name in `OPERATIONS`."""

    operation: str
    operands: tuple[Quantity, ...]

    def evaluate(self, lookup: Lookup) -> Values:
        return OPERATIONS[self.operation](*(operand.evaluate(lookup) for operand in self.operands))

    def scores(self) -> Iterator[Score]:
        for operand in self.operands:
            yield from operand.scores()

    def with_method(self, method: str, instead: str) -> Quantity:
        return Combined(self.operation, tuple(operand.with_method(method, instead) for operand in self.operands))


@dataclass(frozen=True)
class Comparison:
    """A comparison of one quantity with a number."""

    quantity: Quantity
    relation: Literal[">", "<", "near", "factor"]
    bound: float
    tolerance: float = 0.0


@dataclass(frozen=True)
class Statement:
    """A conjunction of comparisons: it holds if all of them hold."""

    parts: tuple[Comparison, ...]

    def __and__(self, other: Statement) -> Statement:
        return Statement(self.parts + other.parts)

    def scores(self) -> Iterator[Score]:
        for part in self.parts:
            yield from part.quantity.scores()

    def with_method(self, method: str, instead: str) -> Statement:
        parts = (replace(part, quantity=part.quantity.with_method(method, instead)) for part in self.parts)
        return Statement(tuple(parts))


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that can be checked. Its quantities have values in the paper's tables, too.

    Args:
        text: The sentence.
        source: Section or table of the paper; "beyond the paper" for a claim of ours.
        statement: What has to hold.
    """

    text: str
    source: str
    statement: Statement

    @property
    def is_beyond(self) -> bool:
        """Whether the claim is ours, and not one of a paper."""
        return self.source.startswith("beyond the paper")


def score(method: str, condition: str, metric: str = "macro") -> Score:
    """Return the mean score of a method under a condition."""
    return Score(method, condition, metric)


def seed_deviation(method: str, condition: str, metric: str = "macro") -> Score:
    """Return the standard deviation of a score over seeds."""
    return Score(method, condition, metric, "sd")


def all_of(statements: Iterable[Statement]) -> Statement:
    """Join statements."""
    return Statement(tuple(part for statement in statements for part in statement.parts))


def higher(method: str, others: Sequence[str], conditions: Sequence[str], metric: str = "macro") -> Statement:
    """State that the method scores higher than each of the others under each condition."""
    return all_of(score(method, c, metric) - score(other, c, metric) > 0 for other in others for c in conditions)


def lower(method: str, others: Sequence[str], conditions: Sequence[str], metric: str) -> Statement:
    """State that the method scores lower than each of the others under each condition, for metrics that are errors."""
    return all_of(score(other, c, metric) - score(method, c, metric) > 0 for other in others for c in conditions)


def drop(method: str, start: str, end: str) -> Quantity:
    """Return the drop of a score from one condition to another."""
    return score(method, start) - score(method, end)


def relative_drop(method: str, start: str, end: str) -> Quantity:
    """Return the drop of a score relative to its start: (start − end) / start."""
    return drop(method, start, end) / score(method, start)


def value_range(*quantities: Quantity) -> Quantity:
    """Return the largest quantity minus the smallest."""
    return Combined("range", quantities)


def coefficient_of_variation(*quantities: Quantity) -> Quantity:
    """Return the standard deviation (ddof 0) divided by the mean."""
    return Combined("variation", quantities)


def mean_of(quantities: Iterable[Quantity]) -> Quantity:
    """Return the mean of some quantities."""
    return Combined("mean", tuple(quantities))


def combined_sd(*scores: Score) -> Quantity:
    """Return the square root of the summed variances over seeds."""
    return Combined("norm", tuple(replace(s, statistic="sd") for s in scores))


def matches_row(
    method: str, table: Mapping[str, tuple[float, float]], metric: str = "macro", tolerance: float = VALUE_TOLERANCE
) -> Statement:
    """State that the method's means equal those of the paper's row."""
    return all_of(score(method, condition, metric).near(mean, tolerance) for condition, (mean, _) in table.items())
