"""NYUv2 ablation (§5.3): BPGS with and without the batch-aware chart, and with and without the calibrated start."""

from .base import Study
from .claims import Claim, higher, lower, score
from .dense import KENDALL, METRICS, MODEL, SEEDS, SHORT_SCHEDULE, bpgs, nyuv2_condition
from .paper_tables import parse_metrics_table, row_claims

PAPER = parse_metrics_table(
    "half",
    METRICS,
    {
        "Kendall":          "0.137±0.006 0.294±0.010 0.990±0.016 38.681±0.936 0.130±0.005 2.546±0.035",
        "BPGS (canonical)": "0.128±0.008 0.283±0.005 0.988±0.043 33.834±1.068 0.161±0.015 2.488±0.075",
        "BPGS (BA-fixed)":  "0.143±0.006 0.291±0.005 0.994±0.022 39.097±0.478 0.130±0.004 2.524±0.047",
        "BPGS (SL-auto)":   "0.058±0.006 0.331±0.003 1.305±0.015 34.661±1.310 0.147±0.024 6.142±1.332",
        "BPGS (SL-fixed)":  "0.120±0.007 0.287±0.006 1.013±0.025 35.183±0.963 0.142±0.010 2.566±0.051",
    },
)  # fmt: skip

METHODS = {
    "Kendall": KENDALL,
    "BPGS (canonical)": bpgs(),
    "BPGS (BA-fixed)": bpgs(calibrate=False),
    "BPGS (SL-auto)": bpgs(chart="stateless"),
    "BPGS (SL-fixed)": bpgs(chart="stateless", calibrate=False),
}
CANONICAL, BA_FIXED, SL_AUTO, SL_FIXED = list(METHODS)[1:]
ERRORS = {"abs_rel": "absolute relative error", "rmse": "depth RMSE", "angle": "angle", "total_loss": "total loss"}
HERE, STABLE = ["half"], [name for name in METHODS if name not in (CANONICAL, SL_AUTO)]


def others(method: str) -> list[str]:
    """Return all methods except one."""
    return [name for name in METHODS if name != method]


CLAIMS = (
    *row_claims(PAPER, "half", "Table 3", METHODS),
    Claim(
        "SL-auto collapses: it has the lowest mIoU and the highest total loss",
        "§5.3",
        lower(SL_AUTO, others(SL_AUTO), HERE, "miou") & higher(SL_AUTO, others(SL_AUTO), HERE, "total_loss"),
    ),
    Claim("SL-auto reaches an mIoU of 0.058", "§5.3", score(SL_AUTO, "half", "miou").near(0.058, 0.012)),
    *(
        Claim(f"The canonical form is better than the other stable forms on {name}", "§5.3",
              lower(CANONICAL, STABLE, HERE, metric))
        for metric, name in ERRORS.items()
    ),
    Claim("The canonical form is better than the other stable forms on normals within 11.25°", "§5.3",
          higher(CANONICAL, STABLE, HERE, "within_11")),
    Claim("BA-fixed has the highest mIoU", "§5.3", higher(BA_FIXED, others(BA_FIXED), HERE, "miou")),
    Claim(
        "SL-fixed is worse than the canonical form in every metric",
        "§5.3",
        higher(CANONICAL, [SL_FIXED], HERE, "miou")
        & higher(CANONICAL, [SL_FIXED], HERE, "within_11")
        & lower(CANONICAL, [SL_FIXED], HERE, "abs_rel")
        & lower(CANONICAL, [SL_FIXED], HERE, "rmse")
        & lower(CANONICAL, [SL_FIXED], HERE, "angle")
        & lower(CANONICAL, [SL_FIXED], HERE, "total_loss"),
    ),
    Claim(
        "SL-fixed is worse than both batch-aware forms on mIoU and total loss",
        "§5.3",
        lower(SL_FIXED, [CANONICAL, BA_FIXED], HERE, "miou")
        & higher(SL_FIXED, [CANONICAL, BA_FIXED], HERE, "total_loss"),
    ),
)  # fmt: skip

STUDY = Study(
    name="nyuv2-ablation",
    title="NYUv2 ablation",
    question="How much do the batch-aware chart and the calibrated start each contribute?",
    problem="nyuv2",
    conditions=(nyuv2_condition("half", subset="half"),),
    methods=METHODS,
    seeds=SEEDS,
    ten_seeds=SEEDS,
    schedule=SHORT_SCHEDULE,
    model=MODEL,
    metrics=METRICS,
    layout="metrics",
    paper_seeds_only=True,
    paper=PAPER,
    claims=CLAIMS,
)
