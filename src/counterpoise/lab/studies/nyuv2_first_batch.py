"""NYUv2, first batch (appendix): BPGS calibrates on the first batch, so three first batches are compared."""

from ..engine.config import freeze_options
from .base import Condition, Study
from .claims import Claim, all_of, coefficient_of_variation, score, value_range
from .dense import BPGS, MODEL, SHORT_SCHEDULE, bpgs_table

LOADERS = (1001, 2001, 3001)
KEYS = tuple(map(str, LOADERS))
METRICS = ("total_loss", "abs_rel", "rmse", "angle", "miou")
NUMBERS = {
    "total_loss": (2.1145, 2.1040, 2.1090),
    "abs_rel": (0.2385, 0.2392, 0.2411),
    "rmse": (0.8348, 0.8302, 0.8325),
    "angle": (28.9205, 28.8975, 29.1069),
    "miou": (0.1912, 0.1866, 0.1952),
    "theta_max": (2.4451, 2.4382, 2.4380),
}
THETA = tuple(score("BPGS", key, "theta_max") for key in KEYS)

CLAIMS = (
    Claim("Every coefficient of variation over first batches is below 2 %", "§5.4, Table 11",
          all_of(coefficient_of_variation(*(score("BPGS", key, m) for key in KEYS)) < 0.02 for m in METRICS)),
    Claim("The final θ_max values differ by at most 0.3 %", "§5.4, Table 11", value_range(*THETA) / THETA[0] < 0.0035),
)  # fmt: skip

STUDY = Study(
    name="nyuv2-first-batch",
    title="NYUv2, first batch",
    question="How much does BPGS depend on the batch that it is calibrated on?",
    problem="nyuv2",
    conditions=tuple(
        Condition(key, freeze_options(subset="half", loader_seed=seed)) for key, seed in zip(KEYS, LOADERS, strict=True)
    ),
    methods={"BPGS": BPGS},
    seeds=(42,),
    ten_seeds=(42,),
    schedule=SHORT_SCHEDULE,
    model=MODEL,
    metrics=(*METRICS, "theta_max"),
    paper_seeds_only=True,
    paper=bpgs_table(KEYS, NUMBERS),
    claims=CLAIMS,
)
