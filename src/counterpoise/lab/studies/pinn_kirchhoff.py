"""Kirchhoff plate: nine losses and fourth derivatives, after Bischof and Kraus (2021, table IV).

The published networks have four hidden layers of 360, are trained for at most 100,000 steps with a rate that falls on a
plateau, and are reported by the median of four runs (https://arxiv.org/abs/2110.09813). The main condition has four
layers of 50 and the schedule of the other studies of physics-informed networks, for 20,000 steps. Its derivatives have
13 channels, so that a step takes several times as long as in the other studies. Recorded are the methods that need one
backward pass, and of the gradient-space methods those of Hwang and Lim's table and of the search.
"""

from dataclasses import replace

from ..engine import recipe, spec
from .base import Study
from .claims import Claim, all_of, lower, score
from .paper_tables import parse_metrics_table
from .pinn import CANDIDATE, COLLAPSING, MAIN, METHODS, RATE_SEEDS, RATES, SCHEDULE, SEEDS, condition

PAPER = parse_metrics_table(
    MAIN,
    ("mse_e9",),
    {"Sum": "13.0", "GradNorm": "17.0", "LRA": "2.7", "SoftAdapt": "2.5", "ReLoBRaLo": "0.40"},
)

STUDY = Study(
    name="pinn-kirchhoff",
    title="Kirchhoff plate",
    question="Which methods balance the residual of a plate with four deflections and four moments on its sides?",
    problem="kirchhoff",
    conditions=(
        condition("nine", interior=1024),
        replace(condition("nine", key="4 × 360", interior=1024), model=spec("pinn", width=360, depth=4)),
    ),
    methods={**METHODS, "ReLoBRaLo": recipe("relobralo", temperature=0.01)},
    seeds=SEEDS,
    ten_seeds=SEEDS,
    schedule=replace(SCHEDULE, epochs=20),
    model=spec("pinn", width=50, depth=4),
    metrics=("mse_e9", "rel_l2"),
    further_metrics=("rel_l2_last", "training_loss"),
    layout="metrics",
    paper_seeds_only=True,
    rates=RATES,
    rate_seeds=RATE_SEEDS,
    paper=PAPER,
    claims=(
        Claim(
            "LRA, SoftAdapt and ReLoBRaLo have a lower error than the sum",
            "Bischof and Kraus 2021, table IV",
            all_of(lower(method, ["Sum"], [MAIN], "mse_e9") for method in ("LRA", "SoftAdapt", "ReLoBRaLo")),
        ),
        Claim(
            "ReLoBRaLo has a lower error than LRA and SoftAdapt",
            "Bischof and Kraus 2021, table IV",
            lower("ReLoBRaLo", ["LRA", "SoftAdapt"], [MAIN], "mse_e9"),
        ),
        Claim(
            "GradNorm does not improve on the sum",
            "Bischof and Kraus 2021, table IV",
            lower("Sum", ["GradNorm"], [MAIN], "mse_e9"),
        ),
        Claim(
            f"{CANDIDATE} has a lower error than ReLoBRaLo",
            "beyond the paper",
            lower(CANDIDATE, ["ReLoBRaLo"], [MAIN], "mse_e9"),
        ),
        Claim(
            "Methods that divide by the losses collapse: their error is above 0.9",
            "beyond the paper",
            all_of(score(method, MAIN, "rel_l2") > 0.9 for method in COLLAPSING),
        ),
    ),
)
