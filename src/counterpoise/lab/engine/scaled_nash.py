"""Nash-MTL with one bargaining power for all losses but the first, for the search on physics-informed networks."""

from collections.abc import Sequence
from typing import Any

import counterpoise as cp


class ScaledNash(cp.NashMTL):
    """Nash-MTL with an importance of 1 for the first loss, the residual of the equation, and `factor` for the others.

    Args:
        tasks: number of tasks, or their names.
        factor: the importance of all tasks but the first.
        options: options of `counterpoise.NashMTL`.
    """

    def __init__(self, tasks: int | Sequence[str], *, factor: float, **options: Any) -> None:
        count = tasks if isinstance(tasks, int) else len(tasks)
        super().__init__(tasks, importance=[1.0, *[factor] * (count - 1)], **options)
