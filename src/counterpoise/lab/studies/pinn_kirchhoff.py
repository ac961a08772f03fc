"""Kirchhoff plate: nine losses and fourth derivatives, after Bischof and Kraus (2021, table IV).

The published networks have four hidden layers of 360, are trained for at most 100,000 steps with a rate that falls on a
plateau, and are reported by the median of four runs (https://arxiv.org/abs/2110.09813). The main condition has four
layers of 50 and the schedule of the other studies of physics-informed networks, for 20,000 steps. Its derivatives have
13 channels, so that a step takes several times as long as in the other studies. Recorded are the methods that need one
backward pass, and of the gradient-space methods those of Hwang and Lim's table and of the search.

In the main condition the equation is ΔΔu = p/D, and each loss is the mean over its own points. The authors' public code
multiplies the equation by D and averages all losses over the whole batch. The weight of the residual relative to the
other losses is then 3,471 times as large. The code also does not standardise the inputs. Condition "authors' code"
repeats this. The published errors belong to it.
"""

from dataclasses import replace

from ..engine import recipe, spec
from .base import Condition, Study
from .claims import Claim, all_of, lower, score
from .paper_tables import parse_metrics_table
from .pinn import CANDIDATE, COLLAPSING, MAIN, METHODS, RATE_SEEDS, RATES, SCHEDULE, SEEDS, condition

AUTHORS = "authors' code"
SOURCE = "Bischof and Kraus 2021, table IV"
PAPER = parse_metrics_table(
    AUTHORS,
    ("mse_e9",),
    {"Sum": "13.0", "GradNorm": "17.0", "LRA": "2.7", "SoftAdapt": "2.5", "ReLoBRaLo": "0.40"},
)


def authors_condition(key: str, part: str, width: int) -> Condition:
    """Return a condition with the losses and points of the authors' code, and networks of the given width."""
    chosen = condition("nine", key=key, interior=512)
    return replace(chosen, problem="kirchhoff-authors", part=part, model=spec("pinn", width=width, depth=4))


def published_claims(condition: str, source: str) -> tuple[Claim, ...]:
    """Return the order of the published errors, as claims about a condition."""
    return (
        Claim(
            "LRA, SoftAdapt and ReLoBRaLo have a lower error than the sum",
            source,
            all_of(lower(method, ["Sum"], [condition], "mse_e9") for method in ("LRA", "SoftAdapt", "ReLoBRaLo")),
        ),
        Claim(
            "ReLoBRaLo has a lower error than LRA and SoftAdapt",
            source,
            lower("ReLoBRaLo", ["LRA", "SoftAdapt"], [condition], "mse_e9"),
        ),
        Claim("GradNorm does not improve on the sum", source, lower("Sum", ["GradNorm"], [condition], "mse_e9")),
    )


STUDY = Study(
    name="pinn-kirchhoff",
    title="Kirchhoff plate",
    question="Which methods balance the residual of a plate with four deflections and four moments on its sides?",
    problem="kirchhoff",
    conditions=(
        condition("nine", interior=1024),
        authors_condition(AUTHORS, "nine losses as in the authors' code", 50),
        authors_condition("4 × 360", "nine losses as in the authors' code, four layers of 360", 360),
    ),
    methods={**METHODS, "ReLoBRaLo": recipe("relobralo", temperature=0.01)},
    seeds=SEEDS,
    ten_seeds=SEEDS,
    schedule=replace(SCHEDULE, epochs=20),
    model=spec("pinn", width=50, depth=4),
    metrics=("mse_e9", "rel_l2"),
    further_metrics=("rel_l2_last",),  # the training losses are below 1e-3, and tables have three decimals
    layout="metrics",
    paper_seeds_only=True,
    rates=RATES,
    rate_seeds=RATE_SEEDS,
    paper=PAPER,
    claims=(
        *published_claims(AUTHORS, SOURCE),
        *published_claims(MAIN, f"{SOURCE}, with the losses of the main condition"),
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
