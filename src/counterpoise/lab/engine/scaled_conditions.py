"""Methods with one factor on the conditions of a physics-informed network, which are all losses but the first."""

from collections.abc import Sequence
from typing import Any

import counterpoise as cp


class ScaledSum(cp.Static):
    """The residual of the equation plus `factor` times the conditions, as people tune it by hand.

    Args:
        tasks: number of tasks, or their names.
        factor: the factor of the conditions.
        options: options of `counterpoise.Static`.
    """

    def __init__(self, tasks: int | Sequence[str], *, factor: float, **options: Any) -> None:
        super().__init__(tasks, _factors(tasks, factor), **options)


class ScaledNash(cp.NashMTL):
    """Nash-MTL in which each condition has the importance `factor`, its bargaining power. The residual has 1."""

    def __init__(self, tasks: int | Sequence[str], *, factor: float, **options: Any) -> None:
        super().__init__(tasks, importance=_factors(tasks, factor), **options)


def _factors(tasks: int | Sequence[str], factor: float) -> list[float]:
    count = tasks if isinstance(tasks, int) else len(tasks)
    return [1.0, *[factor] * (count - 1)]
