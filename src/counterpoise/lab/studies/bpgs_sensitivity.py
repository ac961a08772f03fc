"""Sensitivity of BPGS to radius, margin, θ's optimiser, ε_std, batch size and a start at the edge of the chart."""

from dataclasses import replace

from ..engine import recipe
from .base import BPGS, TEN_SEEDS, Condition, Study
from .claims import Claim, all_of, higher, score

EDGE_START = (8.0, -8.0, 8.0, -8.0, 8.0)  # |z|/τ = 0.9993, where σ(1 − σ) is a thousandth of its maximum
HALF_RADIUS, DOUBLE_RADIUS = -0.95, 2.2  # margins: τ = √4 + margin becomes 1.05 or 4.2 instead of 2.1

METHODS = {
    "BPGS": BPGS,
    "τ × ½": recipe("bpgs", clip=5.0, margin=HALF_RADIUS),
    "τ × 2": recipe("bpgs", clip=5.0, margin=DOUBLE_RADIUS),
    "margin 0.01": recipe("bpgs", clip=5.0, margin=0.01),
    "margin 0.5": recipe("bpgs", clip=5.0, margin=0.5),
    "θ rate ÷ 10": replace(BPGS, lr=3e-4),
    "θ rate × 10": replace(BPGS, lr=3e-2),
    "gain 1, Adam": recipe("bpgs", clip=5.0, theta_gain=1.0),
    "gain 100, SGD": recipe("bpgs", clip=5.0, optimizer="sgd"),
    "gain 1, SGD": recipe("bpgs", clip=5.0, theta_gain=1.0, optimizer="sgd"),
    "ε_std 1e-6": recipe("bpgs", clip=5.0, eps_std=1e-6),
    "ε_std 0.1": recipe("bpgs", clip=5.0, eps_std=0.1),
    "ε_std 1": recipe("bpgs", clip=5.0, eps_std=1.0),
    "far start": recipe("bpgs", clip=5.0, calibrate=False, start=EDGE_START),
    "far start, θ rate × 10": recipe("bpgs", clip=5.0, calibrate=False, start=EDGE_START, lr=3e-2),
}


def factor_options(scale: float) -> tuple[tuple[str, object], ...]:
    """Return the problem's options for a factor on the loss of one task."""
    return (("pattern", "single"), ("scale", scale))


CONDITIONS = (
    *(Condition(f"×{s}", factor_options(float(s))) for s in (1, 1000)),
    *(
        Condition(
            f"batch {size}", factor_options(100.0), part="batch size at ×100", head=str(size), only=("BPGS",),
            schedule=(("batch_size", size),),
        )
        for size in (1, 4, 16, 64, 256)
    ),
)  # fmt: skip

STUDY = Study(
    name="knobs",
    title="Sensitivity of BPGS to its settings",
    question="Which settings of BPGS matter, and does θ recover from a start at the edge of the chart?",
    problem="rescaling",
    conditions=CONDITIONS,
    methods=METHODS,
    seeds=TEN_SEEDS,
    metrics=("macro", "worst", "reach"),
    claims=(
        Claim(
            "θ recovers from a start at the edge of the chart (|z|/τ < 0.95 at the end)",
            "beyond the paper",
            all_of(score("far start", c, "reach") < 0.95 for c in ("×1", "×1000")),
        ),
        Claim(
            "θ recovers from that start with ten times the learning rate",
            "beyond the paper",
            all_of(score("far start, θ rate × 10", c, "reach") < 0.95 for c in ("×1", "×1000")),
        ),
        Claim(
            "A calibrated start scores higher than a start at the edge",
            "beyond the paper",
            higher("BPGS", ["far start"], ["×1", "×1000"]),
        ),
        Claim(
            "The gain has no effect under Adam (scores with gain 1 and 100 differ by less than 0.01)",
            "§3.3, strict reading",
            all_of(
                (score("BPGS", c) - score("gain 1, Adam", c) < 0.01)
                & (score("gain 1, Adam", c) - score("BPGS", c) < 0.01)
                for c in ("×1", "×1000")
            ),
        ),
    ),
)
