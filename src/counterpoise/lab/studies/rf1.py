"""RF1 (§5.5): the flow of a river at eight sites, 48 hours ahead."""

from dataclasses import replace

from .base import Saturation, Study
from .claims import Claim, Statement, all_of, higher, lower, score
from .paper_tables import parse_metrics_table, row_claims
from .real_data import METHODS, OTHERS, REAL_DATA_SCHEDULE, RESIDUAL, SEEDS, chart_claims, condition

METRICS = ("r2", "rmse", "mae")

PAPER = parse_metrics_table(
    "authors",
    METRICS,
    {
        "Static":        "-0.453±0.127 29.875±0.485 23.376±0.451",
        "Kendall":       "-0.439±0.164 29.801±0.821 23.219±0.790",
        "UWSO":          "-0.408±0.193 30.144±1.137 23.449±1.230",
        "PCGrad":        "-0.432±0.107 29.596±0.385 23.098±0.368",
        "GradNormProxy": "-0.508±0.248 30.033±0.482 23.380±0.582",
        "BPGS":          "-0.429±0.213 30.158±0.952 23.548±0.908",
    },
)  # fmt: skip
SATURATION = Saturation(8, 0.8937, 0.89, "authors")


def best(method: str, metric: str) -> Statement:
    """State that the method is the best of all in a metric."""
    others = [name for name in METHODS if name != method]
    return (higher if metric == "r2" else lower)(method, others, ["authors"], metric)


def near_the_best(method: str, metric: str, share: float) -> Statement:
    """State that the method's error exceeds that of every other method by less than a share."""
    return all_of(score(method, "authors", metric) / score(o, "authors", metric) < 1 + share for o in OTHERS)


STUDY = Study(
    name="rf1",
    title="RF1",
    question="Does the method matter for eight regression tasks of one kind, with standardised and with raw targets?",
    problem="rf1",
    conditions=(
        condition("authors", "the authors' trunk, targets standardised online", targets="online"),
        condition("raw targets", "the authors' trunk, raw targets", targets="raw"),
        condition("plain", "plain trunk, targets standardised online", targets="online"),
        condition("plain, raw targets", "plain trunk, raw targets", targets="raw"),
    ),
    methods=METHODS,
    seeds=SEEDS,
    schedule=replace(REAL_DATA_SCHEDULE, batch_size=256),
    model=RESIDUAL,
    metrics=METRICS,
    layout="metrics",
    paper_seeds_only=True,
    paper=PAPER,
    saturation=SATURATION,
    claims=(
        *row_claims(PAPER, "authors", "Table 4", METHODS),
        Claim("PCGrad has the lowest RMSE", "Abstract, §5.5", best("PCGrad", "rmse")),
        Claim("PCGrad has the lowest MAE", "Abstract, §5.5", best("PCGrad", "mae")),
        Claim("UWSO has the best mean R²", "§5.5", best("UWSO", "r2")),
        Claim(
            "BPGS has the second-best R²",
            "§5.5",
            higher("BPGS", [name for name in OTHERS if name != "UWSO"], ["authors"], "r2")
            & higher("UWSO", ["BPGS"], ["authors"], "r2"),
        ),
        Claim("BPGS's RMSE is within about 2 % of the best", "§5.5", near_the_best("BPGS", "rmse", 0.025)),
        Claim("BPGS's MAE is within about 2 % of the best", "§5.5", near_the_best("BPGS", "mae", 0.025)),
        *chart_claims(SATURATION),
    ),
)
