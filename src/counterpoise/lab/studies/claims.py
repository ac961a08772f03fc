"""The paper's claims as data: a quantity, what is said of it, and where.

A quantity is written as one would say it: `score("BPGS", "×1000") - score("Kendall", "×1000")`. What is said of it is
`> 0`, `< 0.01`, `near(0.637)`; several at once are joined by `&`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Lookup = Callable[["Score"], Values]

VALUE_TOLERANCE = 0.003  # how far a mean may lie from the paper's and still be the same: rounding and float noise


@dataclass(frozen=True)
class Quantity:
    """Something that can be computed from the mean scores of some cells of a table."""

    def evaluate(self, lookup: Lookup) -> Values:
        raise NotImplementedError

    def scores(self) -> Iterator[Score]:
        """The cells it is computed from."""
        raise NotImplementedError

    def read_as(self, method: str, instead: str) -> Quantity:
        """The same quantity of another method."""
        raise NotImplementedError

    def __sub__(self, other: Quantity) -> Quantity:
        return Combined("-", (self, other))

    def __truediv__(self, other: Quantity) -> Quantity:
        return Combined("/", (self, other))

    def __gt__(self, bound: float) -> Statement:
        return Statement((Part(self, ">", bound),))

    def __lt__(self, bound: float) -> Statement:
        return Statement((Part(self, "<", bound),))

    def near(self, value: float, tolerance: float = VALUE_TOLERANCE) -> Statement:
        return Statement((Part(self, "near", value, tolerance),))


@dataclass(frozen=True)
class Score(Quantity):
    """The score of a method under a condition: its mean over seeds, or their standard deviation (ddof 0)."""

    method: str
    condition: str
    metric: str = "macro"
    statistic: Literal["mean", "sd"] = "mean"

    def evaluate(self, lookup: Lookup) -> Values:
        return lookup(self)

    def scores(self) -> Iterator[Score]:
        yield self

    def read_as(self, method: str, instead: str) -> Quantity:
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
    operation: str
    operands: tuple[Quantity, ...]

    def evaluate(self, lookup: Lookup) -> Values:
        return OPERATIONS[self.operation](*(operand.evaluate(lookup) for operand in self.operands))

    def scores(self) -> Iterator[Score]:
        for operand in self.operands:
            yield from operand.scores()

    def read_as(self, method: str, instead: str) -> Quantity:
        return Combined(self.operation, tuple(operand.read_as(method, instead) for operand in self.operands))


@dataclass(frozen=True)
class Part:
    quantity: Quantity
    relation: Literal[">", "<", "near"]
    bound: float
    tolerance: float = 0.0


@dataclass(frozen=True)
class Statement:
    """What is said of some quantities: it holds if all its parts do."""

    parts: tuple[Part, ...]

    def __and__(self, other: Statement) -> Statement:
        return Statement(self.parts + other.parts)

    def scores(self) -> Iterator[Score]:
        for part in self.parts:
            yield from part.quantity.scores()

    def read_as(self, method: str, instead: str) -> Statement:
        return Statement(tuple(replace(part, quantity=part.quantity.read_as(method, instead)) for part in self.parts))


@dataclass(frozen=True)
class Claim:
    """One checkable sentence of the paper. The paper's own values of its quantities follow from the paper's tables."""

    text: str
    where: str
    statement: Statement


def score(method: str, condition: str, metric: str = "macro") -> Score:
    return Score(method, condition, metric)


def deviation(method: str, condition: str, metric: str = "macro") -> Score:
    """Over seeds."""
    return Score(method, condition, metric, "sd")


def all_of(statements: Iterable[Statement]) -> Statement:
    return Statement(tuple(part for statement in statements for part in statement.parts))


def ahead(method: str, others: Sequence[str], conditions: Sequence[str], metric: str = "macro") -> Statement:
    """The method scores more than each of the others under each of the conditions."""
    return all_of(score(method, c, metric) - score(other, c, metric) > 0 for other in others for c in conditions)


def below(method: str, others: Sequence[str], conditions: Sequence[str], metric: str) -> Statement:
    """The method has less than each of the others: it is ahead where a metric is an error."""
    return all_of(score(other, c, metric) - score(method, c, metric) > 0 for other in others for c in conditions)


def drop(method: str, start: str, end: str) -> Quantity:
    return score(method, start) - score(method, end)


def relative_drop(method: str, start: str, end: str) -> Quantity:
    """(start − end) / start."""
    return drop(method, start, end) / score(method, start)


def spread(*quantities: Quantity) -> Quantity:
    """The largest less the smallest."""
    return Combined("range", quantities)


def variation(*quantities: Quantity) -> Quantity:
    """The coefficient of variation: standard deviation (ddof 0) over mean."""
    return Combined("variation", quantities)


def mean_of(quantities: Iterable[Quantity]) -> Quantity:
    return Combined("mean", tuple(quantities))


def combined_sd(*scores: Score) -> Quantity:
    """The root of the sum of the variances over seeds."""
    return Combined("norm", tuple(replace(s, statistic="sd") for s in scores))


def row(
    method: str, table: Mapping[str, tuple[float, float]], metric: str = "macro", tolerance: float = VALUE_TOLERANCE
) -> Statement:
    """The method's means are those of the paper's row."""
    return all_of(score(method, condition, metric).near(mean, tolerance) for condition, (mean, _) in table.items())
