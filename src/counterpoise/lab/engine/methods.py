"""The methods that runs may name: those of the library, and those that only the laboratory has."""

from typing import Any

import counterpoise as cp
from counterpoise.registry import Method

from .nash_authors import NashAuthors

LAB_METHODS = {
    "nash-authors": Method(
        "nash-authors",
        NashAuthors,
        "gradient",
        "Subedi 2026, baseline",
        "Nash-MTL by an undamped iteration, clipped while loss-scaled: what the paper's row rests on",
        ("shared",),
    )
}


def describe(name: str) -> Method:
    return LAB_METHODS[name] if name in LAB_METHODS else cp.describe(name)


def make(name: str, tasks: tuple[str, ...], **options: Any) -> cp.Balancer:
    return LAB_METHODS[name].build(tasks, **options) if name in LAB_METHODS else cp.make(name, tasks, **options)
