"""Knobs of BPGS: radius, margin, θ's rate and optimiser, gain, floor, batch size, and a start far outside."""

from dataclasses import replace

from ..engine import recipe
from .base import BPGS, TEN, Condition, Study
from .claims import Claim, ahead, all_of, score

FAR = (8.0, -8.0, 8.0, -8.0, 8.0)  # |z|/τ = 0.9993: σ(1 − σ) is a thousandth of its maximum
HALF, DOUBLE = -0.95, 2.2  # τ = √4 + margin: 2.1 becomes 1.05 or 4.2

METHODS = {
    "BPGS": BPGS,
    "τ × ½": recipe("bpgs", clip=5.0, margin=HALF),
    "τ × 2": recipe("bpgs", clip=5.0, margin=DOUBLE),
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
    "far start": recipe("bpgs", clip=5.0, calibrate=False, start=FAR),
    "far start, θ rate × 10": recipe("bpgs", clip=5.0, calibrate=False, start=FAR, lr=3e-2),
}


def factor(scale: float) -> tuple[tuple[str, object], ...]:
    return (("pattern", "single"), ("scale", scale))


CONDITIONS = (
    *(Condition(f"×{s}", factor(float(s))) for s in (1, 1000)),
    *(
        Condition(
            f"batch {size}", factor(100.0), part="batch size at ×100", head=str(size), only=("BPGS",),
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
    seeds=TEN,
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
            ahead("BPGS", ["far start"], ["×1", "×1000"]),
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
