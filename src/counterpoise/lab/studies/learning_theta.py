"""Does learning θ matter? BPGS is compared with rules that use its fixed point s = log L without learning."""

from ..engine import recipe
from .base import SCALE_KEYS, TEN_SEEDS, Study, other_problem, regime_conditions, scale_conditions
from .claims import Claim, higher, score

METHODS = {
    "BPGS": recipe("bpgs", clip=5.0),
    "BPGS (frozen θ)": recipe("bpgs", clip=5.0, lr=0.0),
    "UW-O": recipe("uw-o"),
    "ℓ1-UW-O": recipe("uw-o", normalise=True),
    "EMA-UW-O": recipe("ema-uw-o"),
    "IMTL-L": recipe("imtl-l", clip=5.0),
}  # all learned weights use the same learning rate and clip, and no weight decay

HARDEST = ("rescaling ×1000", "scale stress ×1000", "heterogeneous conflict")

STUDY = Study(
    name="learning-theta",
    title="Does learning θ matter?",
    question="Does BPGS improve on the inverse-loss weights of its fixed point?",
    problem="rescaling",
    conditions=other_problem("rescaling", "rescaling", scale_conditions(pattern="single"))
    + other_problem("scale-stress", "scale stress", scale_conditions())
    + other_problem("heterogeneous", "heterogeneous", regime_conditions("clean", "noisy", "conflict", "opposed")),
    methods=METHODS,
    seeds=TEN_SEEDS,
    metrics=("macro", "worst"),
    claims=(
        *(
            Claim(
                f"BPGS scores higher than {other}", f"beyond the paper, {hardest}", higher("BPGS", [other], [hardest])
            )
            for other in ("BPGS (frozen θ)", "ℓ1-UW-O", "EMA-UW-O", "IMTL-L")
            for hardest in HARDEST
        ),
        *(
            Claim(
                f"BPGS and ℓ1-UW-O differ by less than 0.01 at {c}",
                "beyond the paper",
                (score("BPGS", f"rescaling {c}") - score("ℓ1-UW-O", f"rescaling {c}") < 0.01)
                & (score("ℓ1-UW-O", f"rescaling {c}") - score("BPGS", f"rescaling {c}") < 0.01),
            )
            for c in SCALE_KEYS
        ),
    ),
)
