"""The methods available to runs: those of the library and those that exist only for the studies."""

from typing import Any

import counterpoise as cp
from counterpoise.registry import Method

from .aligned_jacobi import AlignedJacobi
from .nash_authors import NashAuthors
from .scaled_conditions import ScaledNash, ScaledSum

LAB_METHODS = {
    "nash-authors": Method(
        "nash-authors",
        NashAuthors,
        "gradient",
        "Subedi 2026, baseline",
        "Nash-MTL with an undamped iteration and a clip of the scaled gradient, as in the paper's experiments",
        ("shared",),
    ),
    "aligned-jacobi": Method(
        "aligned-jacobi",
        AlignedJacobi,
        "gradient",
        "Senushkin et al. 2023",
        "Aligned-MTL without synchronisation with the device",
        ("shared",),
    ),
    "scaled-nash": Method(
        "scaled-nash",
        ScaledNash,
        "gradient",
        "Navon et al. 2022",
        "Nash-MTL with an importance for all losses but the first",
        ("shared",),
    ),
    "scaled-sum": Method(
        "scaled-sum",
        ScaledSum,
        "loss",
        "baseline",
        "the sum with a factor on all losses but the first",
        (),
    ),
}


def describe(name: str) -> Method:
    """Return the registry entry of a method."""
    return LAB_METHODS[name] if name in LAB_METHODS else cp.describe(name)


def make(name: str, tasks: tuple[str, ...], **options: Any) -> cp.Balancer:
    """Build a balancer by the name of its method. The option `fixed` may be given as pairs."""
    if "fixed" in options:
        options["fixed"] = dict(options["fixed"])
    return LAB_METHODS[name].build(tasks, **options) if name in LAB_METHODS else cp.make(name, tasks, **options)
