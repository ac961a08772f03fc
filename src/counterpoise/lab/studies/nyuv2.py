"""NYUv2 (§5.2): segmentation, depth and surface normals of indoor scenes by one SegNet."""

from ..engine import recipe
from .base import Saturation, Study
from .claims import Claim, ahead, all_of, below, deviation, score
from .dense import (
    BPGS,
    KENDALL,
    METRICS,
    MODEL,
    NASH,
    NASH_AUTHORS,
    PROTOCOL,
    SEEDS,
    STATIC,
    UWSO,
    bpgs,
    only,
    paper,
    row_claims,
)  # fmt: skip

COLUMNS = (*METRICS, "delta_m")
PAPER = paper(
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

THEIRS = {"Static": STATIC, "Kendall": KENDALL, "UWSO": UWSO, "BPGS": BPGS, "Nash-MTL": NASH}
OURS = {
    "UW-O": recipe("uw-o"),
    "FAMO": recipe("famo"),
    "CAGrad": recipe("cagrad"),
    "BPGS + PCGrad": recipe("pcgrad", weighting=BPGS),
}
AT_ONE = {"BPGS (clip 1)": bpgs(network_clip=1.0)}
AT_TEN = {
    "Static (clip 10)": recipe("static", network_clip=10.0),
    "Kendall (clip 10)": recipe("kendall", joined=True, network_clip=10.0),
    "UWSO (clip 10)": recipe("uw-so", network_clip=10.0),
    "Nash-MTL (clip 10)": recipe("nash-mtl", network_clip=10.0),
}
METHODS = {**THEIRS, "Nash-MTL (authors)": NASH_AUTHORS, **OURS, **AT_ONE, **AT_TEN}

LOSS_SPACE = ("Static", "Kendall", "UWSO")
NASHES = ("Nash-MTL", "Nash-MTL (authors)")
MAIN = ["main"]


def of_five(nash: str) -> tuple[Claim, ...]:
    """What is said of all five methods, with one of the two forms of Nash-MTL among them."""
    five = (*LOSS_SPACE, "BPGS", nash)
    rest = {method: [other for other in five if other != method] for method in five}
    top, too = "Abstract, §5.2, Table 2", f", {nash} included"
    return (
        Claim(f"BPGS has the lowest absolute relative error{too}", top, below("BPGS", rest["BPGS"], MAIN, "abs_rel")),
        Claim(f"BPGS has the lowest depth RMSE{too}", top, below("BPGS", rest["BPGS"], MAIN, "rmse")),
        Claim(f"BPGS has the lowest total loss{too}", top, below("BPGS", rest["BPGS"], MAIN, "total_loss")),
        Claim(f"BPGS has the highest Δ_M{too}", "§5.2, Table 2", ahead("BPGS", rest["BPGS"], MAIN, "delta_m")),
        Claim(f"Static has the best mIoU{too}", "§5.2", ahead("Static", rest["Static"], MAIN, "miou")),
        Claim(f"BPGS has the second-best mIoU{too}", "Table 2",
              ahead("BPGS", ["Kendall", "UWSO", nash], MAIN, "miou")),
        Claim(f"UWSO is best on both surface-normal metrics{too}", "§5.2",
              below("UWSO", rest["UWSO"], MAIN, "angle") & ahead("UWSO", rest["UWSO"], MAIN, "within_11")),
        Claim(f"{nash} has the lowest mIoU but more normals within 11.25° than Static", "§5.2",
              below(nash, rest[nash], MAIN, "miou") & ahead(nash, ["Static"], MAIN, "within_11")),
        Claim(f"{nash} has the largest standard deviation of mIoU over seeds", "§5.2",
              all_of(deviation(nash, "main", "miou") - deviation(other, "main", "miou") > 0 for other in rest[nash])),
        Claim(f"No method is best in every metric{too}", "§5.2",  # the best in one is not in another
              ahead("Static", rest["Static"], MAIN, "miou") & below("UWSO", ["Static"], MAIN, "angle")),
    )  # fmt: skip


CLAIMS = (
    *row_claims(PAPER, "main", "Table 2", METHODS),
    *(claim for nash in NASHES for claim in of_five(nash)),
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
        only("main", *THEIRS, "Nash-MTL (authors)"),
        only("equal clips 1", *LOSS_SPACE, *AT_ONE, "Nash-MTL", part="all clipped at 1", asked=True),
        only("equal clips 10", "BPGS", *AT_TEN, part="all clipped at 10", asked=True),
        only("beyond", "Static", "Kendall", "BPGS", *OURS, part="beyond the paper", asked=True),
        only("seg ×1000", "Kendall", "BPGS", "UW-O", part="segmentation loss × 1000", asked=True, factor_seg=1000.0),
    ),
    methods=METHODS,
    seeds=SEEDS,
    ten=SEEDS,
    schedule=PROTOCOL,
    model=MODEL,
    metrics=COLUMNS,
    further=("pixel_accuracy", "angle_median", "within_22", "within_30", "delta_m_percent"),
    layout="metrics",
    brief=True,
    paper=PAPER,
    saturation=Saturation(3, 0.9327, 0.84, "main"),
    claims=CLAIMS,
)
