"""Beyond the paper: its studies with every method that can run there, each at the best of three learning rates.

The normalisation ablation is the rescaling grid at other seeds, so one study here serves both.
"""

from collections.abc import Mapping
from dataclasses import replace

import counterpoise as cp

from ..engine import Recipe, recipe
from . import heterogeneous, rescaling, scale_stress
from .base import BPGS, BPGS_RAW, KENDALL, KENDALL_L1, PCGRAD, RAW, UWSO, Study

RATES = (1e-3, 3e-3, 1e-2)

GIVEN = {"shared", "step_end", "epoch_end"}
"""What the trainer gives a method beyond losses. Indicators (DTP) and a second batch (Auto-Lambda) it does not: both
would let a method look at data that the others do not see."""

PAPER_NAMES = {
    "bpgs": ("BPGS", BPGS),
    "kendall": ("Kendall", KENDALL),
    "kendall-l1": ("Kendall+ℓ1", KENDALL_L1),
    "uw-so": ("UWSO", UWSO),
    "pcgrad": ("PCGrad", PCGRAD),
}


def every_method() -> Mapping[str, Recipe]:
    """The registry's methods by name, those of the paper as there, and BPGS before three of gradient space."""
    found: dict[str, Recipe] = {}
    for name in cp.methods():
        if set(cp.describe(name).needs) <= GIVEN:
            label, method = PAPER_NAMES.get(name, (name, recipe(name, clip=5.0)))
            found[label] = method
    found[RAW] = BPGS_RAW
    for name, label in (("pcgrad", "PCGrad"), ("cagrad", "CAGrad"), ("nash-mtl", "Nash-MTL")):
        found[f"BPGS + {label}"] = recipe(name, weighting=BPGS)
    return found


def beyond(study: Study) -> Study:
    return replace(
        study,
        name=f"beyond-{study.name}",
        title=f"{study.title}, every method",
        conditions=tuple(c for c in study.conditions if not c.extra),
        methods=every_method(),
        seeds=study.ten,
        ddof=1,
        rates=RATES,
        paper={},
        claims=(),
    )


BEYOND = tuple(beyond(m.STUDY) for m in (rescaling, scale_stress, heterogeneous))
