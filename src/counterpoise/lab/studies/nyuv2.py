"""NYUv2 (§5.2): segmentation, depth and surface normals of indoor images with one SegNet."""

from ..engine import recipe
from .base import Saturation, Study
from .claims import Claim, all_of, higher, lower, score, seed_deviation
from .dense import (
    BPGS,
    KENDALL,
    METRICS,
    MODEL,
    NASH,
    NASH_AUTHORS,
    NYUV2_SCHEDULE,
    SEEDS,
    STATIC,
    UWSO,
    bpgs,
    nyuv2_condition,
)  # fmt: skip
from .paper_tables import parse_metrics_table, row_claims

COLUMNS = (*METRICS, "delta_m")
PAPER = parse_metrics_table(
    "main",
    COLUMNS,
    {
        "Static":   "0.341±0.006 0.239±0.000 0.829±0.011 35.934±2.055 0.169±0.009 1.992±0.033 0.000±0.000",
        "Kendall":  "0.281±0.013 0.229±0.001 0.808±0.003 28.629±0.431 0.231±0.007 1.977±0.029 0.022±0.000",
        "UWSO":     "0.294±0.007 0.228±0.003 0.815±0.012 26.110±0.383 0.271±0.007 1.936±0.023 0.059±0.000",
        "BPGS":     "0.312±0.001 0.223±0.002 0.790±0.010 26.851±0.334 0.257±0.005 1.891±0.014 0.078±0.000",
        "Nash-MTL": "0.252±0.027 0.242±0.009 0.856±0.029 30.180±1.010 0.211±0.011 2.071±0.070 -0.038",
        "Nash-MTL (authors)":
                    "0.252±0.027 0.242±0.009 0.856±0.029 30.180±1.010 0.211±0.011 2.071±0.070 -0.038",
    },
)  # fmt: skip

PAPER_METHODS = {"Static": STATIC, "Kendall": KENDALL, "UWSO": UWSO, "BPGS": BPGS, "Nash-MTL": NASH}
ADDED_METHODS = {
    "UW-O": recipe("uw-o"),
    "FAMO": recipe("famo"),
    "CAGrad": recipe("cagrad"),
    "BPGS + PCGrad": recipe("pcgrad", weighting=BPGS),
    "First loss": recipe("first-loss"),
    "Gradient normalisation": recipe("grad-normalise"),
    "BPGS (gradient)": bpgs(network_clip=1.0, statistic="gradient"),
}
"""All clip the network at 1, as the paper does except for BPGS."""
CLIP_1 = {"BPGS (clip 1)": bpgs(network_clip=1.0)}
CLIP_10 = {
    "Static (clip 10)": recipe("static", network_clip=10.0),
    "Kendall (clip 10)": recipe("kendall", joined=True, network_clip=10.0),
    "UWSO (clip 10)": recipe("uw-so", network_clip=10.0),
    "Nash-MTL (clip 10)": recipe("nash-mtl", network_clip=10.0),
}
METHODS = {**PAPER_METHODS, "Nash-MTL (authors)": NASH_AUTHORS, **ADDED_METHODS, **CLIP_1, **CLIP_10}

LOSS_SPACE = ("Static", "Kendall", "UWSO")
NASH_VARIANTS = ("Nash-MTL", "Nash-MTL (authors)")
MAIN = ["main"]


def claims_with(nash: str) -> tuple[Claim, ...]:
    """Return the claims about all five methods, with one of the two variants of Nash-MTL."""
    five = (*LOSS_SPACE, "BPGS", nash)
    rest = {method: [other for other in five if other != method] for method in five}
    top, too = "Abstract, §5.2, Table 2", f", {nash} included"
    return (
        Claim(f"BPGS has the lowest absolute relative error{too}", top, lower("BPGS", rest["BPGS"], MAIN, "abs_rel")),
        Claim(f"BPGS has the lowest depth RMSE{too}", top, lower("BPGS", rest["BPGS"], MAIN, "rmse")),
        Claim(f"BPGS has the lowest total loss{too}", top, lower("BPGS", rest["BPGS"], MAIN, "total_loss")),
        Claim(f"BPGS has the highest Δ_M{too}", "§5.2, Table 2", higher("BPGS", rest["BPGS"], MAIN, "delta_m")),
        Claim(f"Static has the best mIoU{too}", "§5.2", higher("Static", rest["Static"], MAIN, "miou")),
        Claim(f"BPGS has the second-best mIoU{too}", "Table 2",
              higher("BPGS", ["Kendall", "UWSO", nash], MAIN, "miou")),
        Claim(f"UWSO is best on both surface-normal metrics{too}", "§5.2",
              lower("UWSO", rest["UWSO"], MAIN, "angle") & higher("UWSO", rest["UWSO"], MAIN, "within_11")),
        Claim(f"{nash} has the lowest mIoU but more normals within 11.25° than Static", "§5.2",
              lower(nash, rest[nash], MAIN, "miou") & higher(nash, ["Static"], MAIN, "within_11")),
        Claim(f"{nash} has the largest standard deviation of mIoU over seeds", "§5.2",
              all_of(seed_deviation(nash, "main", "miou") - seed_deviation(other, "main", "miou") > 0
                     for other in rest[nash])),
        Claim(f"No method is best in every metric{too}", "§5.2",  # the best in mIoU is not the best in angle
              higher("Static", rest["Static"], MAIN, "miou") & lower("UWSO", ["Static"], MAIN, "angle")),
    )  # fmt: skip


CLAIMS = (
    *row_claims(PAPER, "main", "Table 2", METHODS),
    *(claim for nash in NASH_VARIANTS for claim in claims_with(nash)),
    Claim("BPGS ends with |z|/τ at most 0.84", "§3.4, Table 13, mean over seeds",
          score("BPGS", "main", "reach") < 0.845),
    Claim("BPGS reaches a maximum |z|/τ of 0.9327, at the start of training", "§3.4, Table 13, mean over seeds",
          score("BPGS", "main", "peak").near(0.9327, 0.01)
          & (score("BPGS", "main", "peak") - score("BPGS", "main", "reach") > 0)),
)  # fmt: skip

STUDY = Study(
    name="nyuv2",
    title="NYUv2",
    question="How does BPGS compare with other methods on three different dense prediction tasks?",
    problem="nyuv2",
    conditions=(
        nyuv2_condition("main", *PAPER_METHODS, "Nash-MTL (authors)"),
        nyuv2_condition("equal clips 1", *LOSS_SPACE, *CLIP_1, "Nash-MTL", part="all clipped at 1", opt_in=True),
        nyuv2_condition("equal clips 10", "BPGS", *CLIP_10, part="all clipped at 10", opt_in=True),
        nyuv2_condition("beyond", "Static", "Kendall", "BPGS", *ADDED_METHODS, part="beyond the paper", opt_in=True),
        nyuv2_condition(
            "seg ×1000", "Kendall", "BPGS", "UW-O", part="segmentation loss × 1000", opt_in=True, factor_seg=1000.0
        ),
    ),
    methods=METHODS,
    seeds=SEEDS,
    ten_seeds=SEEDS,
    schedule=NYUV2_SCHEDULE,
    model=MODEL,
    metrics=COLUMNS,
    further_metrics=("pixel_accuracy", "angle_median", "within_22", "within_30", "delta_m_percent"),
    layout="metrics",
    paper_seeds_only=True,
    paper=PAPER,
    saturation=Saturation(3, 0.9327, 0.84, "main"),
    claims=CLAIMS,
)
