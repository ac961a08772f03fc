"""A sum of losses with one factor on all but the first, as people tune it by hand for physics-informed networks."""

from collections.abc import Sequence
from typing import Any

import counterpoise as cp


class ScaledSum(cp.Static):
    """The first loss, the residual of the equation, plus `factor` times the others.

    Args:
        tasks: number of tasks, or their names.
        factor: the factor of all tasks but the first.
        options: options of `counterpoise.Static`.
    """

    def __init__(self, tasks: int | Sequence[str], *, factor: float, **options: Any) -> None:
        count = tasks if isinstance(tasks, int) else len(tasks)
        super().__init__(tasks, [1.0, *[factor] * (count - 1)], **options)
