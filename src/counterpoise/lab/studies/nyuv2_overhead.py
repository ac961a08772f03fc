"""NYUv2, overhead (appendix): time per epoch, memory and parameters, with the methods alternating in one process."""

from dataclasses import replace

from ..engine import recipe
from .base import Study
from .claims import Claim, score
from .dense import BPGS, KENDALL, MODEL, NASH, NYUV2_SCHEDULE, SEEDS, STATIC, UWSO, bpgs, nyuv2_condition
from .paper_tables import parse_metrics_table

COLUMNS = ("epoch_seconds", "memory_mb", "parameters")
PAPER = parse_metrics_table("half", COLUMNS, {"Kendall": "40.916 3339.34 18869140", "BPGS": "40.979 3368.36 18869143"})


TIME, MEMORY = (score("BPGS", "half", m) / score("Kendall", "half", m) for m in ("epoch_seconds", "memory_mb"))
ADDED = score("BPGS", "half", "parameters") - score("Kendall", "half", "parameters")

CLAIMS = (
    Claim("BPGS takes less than 1 % more time than Kendall", "Abstract, §5.6", TIME < 1.01),
    Claim("BPGS takes less than 1 % more memory than Kendall", "§5.6, Table 12", MEMORY < 1.01),
    Claim("BPGS has three more parameters than Kendall", "Table 12", ADDED.near(3, 0.5)),
    Claim("Both add three parameters to the network", "§5.6", (
        score("BPGS", "half", "parameters") - score("Static", "half", "parameters")).near(3, 0.5)),
)  # fmt: skip

MAIN_METHODS = {"Static": STATIC, "Kendall": KENDALL, "BPGS": BPGS}
OTHER_METHODS = {
    "UWSO": UWSO,
    "UW-O": recipe("uw-o"),
    "FAMO": recipe("famo"),
    "GradNorm": recipe("gradnorm"),
    "Gradient normalisation": recipe("grad-normalise"),
    "BPGS (gradient)": bpgs(statistic="gradient"),
    "PCGrad": recipe("pcgrad"),
    "CAGrad": recipe("cagrad"),
    "MGDA": recipe("mgda"),
    "IMTL-G": recipe("imtl-g"),
    "UPGrad": recipe("upgrad"),
    "Nash-MTL": NASH,
    "BPGS + CAGrad": recipe("cagrad", weighting=BPGS),
}

STUDY = Study(
    name="nyuv2-overhead",
    title="NYUv2, overhead",
    question="How much more does training cost with BPGS than with Kendall?",
    problem="nyuv2",
    conditions=(
        nyuv2_condition("half", *MAIN_METHODS, subset="half", measured=True),
        # Its runs are others than those above, so that all methods take turns in one process.
        nyuv2_condition("more methods", part="more methods", opt_in=True, subset="half", measured="together"),
    ),
    methods=MAIN_METHODS | OTHER_METHODS,
    seeds=SEEDS,
    ten_seeds=SEEDS,
    # The paper trains for 60 epochs. The time per epoch does not depend on their number.
    schedule=replace(NYUV2_SCHEDULE, epochs=12, monitor="-total_loss"),
    model=MODEL,
    metrics=(*COLUMNS, "total_seconds"),
    layout="metrics",
    paper_seeds_only=True,
    paper=PAPER,
    claims=CLAIMS,
)
