"""NYUv2, batch size (appendix): BPGS computes its chart from the batch, so batch sizes 4, 8 and 16 are compared."""

from .base import Condition, Study
from .claims import Claim, all_of, coefficient_of_variation, score
from .dense import BPGS, HALF, MODEL, SEEDS, SHORT_SCHEDULE, bpgs_table

SIZES = (4, 8, 16)
KEYS = tuple(f"bs={size}" for size in SIZES)
METRICS = ("total_loss", "abs_rel", "rmse", "angle", "miou")
NUMBERS = {
    "total_loss": (2.1468, 2.1226, 2.1507),
    "abs_rel": (0.2411, 0.2421, 0.2451),
    "rmse": (0.8643, 0.8403, 0.8490),
    "angle": (29.400, 29.223, 29.754),
    "miou": (0.1955, 0.1932, 0.1810),
    "theta_max": (2.396, 2.441, 2.589),
}
THETA = tuple(score("BPGS", key, "theta_max") for key in KEYS)

CLAIMS = (
    Claim("Every coefficient of variation over batch sizes is below 3.5 %", "§5.4, Table 10",
          all_of(coefficient_of_variation(*(score("BPGS", key, m) for key in KEYS)) < 0.035 for m in METRICS)),
    Claim("Every coefficient of variation except that of mIoU is below 1.2 %", "§5.4, Table 10",
          all_of(coefficient_of_variation(*(score("BPGS", key, m) for key in KEYS)) < 0.012 for m in METRICS[:-1])),
    Claim("The final θ_max is between 2.40 and 2.59", "§5.4, within 0.1",
          all_of((theta > 2.296) & (theta < 2.689) for theta in THETA)),
)  # fmt: skip

STUDY = Study(
    name="nyuv2-batch-size",
    title="NYUv2, batch size",
    question="How much does BPGS depend on the batch size that its chart is computed from?",
    problem="nyuv2",
    conditions=tuple(
        Condition(key, HALF, schedule=(("batch_size", size),)) for key, size in zip(KEYS, SIZES, strict=True)
    ),
    methods={"BPGS": BPGS},
    seeds=SEEDS,
    ten_seeds=SEEDS,
    schedule=SHORT_SCHEDULE,
    model=MODEL,
    metrics=(*METRICS, "theta_max"),
    paper_seeds_only=True,
    paper=bpgs_table(KEYS, NUMBERS),
    claims=CLAIMS,
)
