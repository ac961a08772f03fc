"""Does learning θ matter? BPGS against rules that reach its fixed point s = log L without learning."""

from ..engine import recipe
from .base import COLUMNS, TEN, Study, elsewhere, regimes, scales
from .claims import Claim, ahead, score

METHODS = {
    "BPGS": recipe("bpgs", clip=5.0),
    "BPGS (frozen θ)": recipe("bpgs", clip=5.0, lr=0.0),
    "UW-O": recipe("uw-o"),
    "ℓ1-UW-O": recipe("uw-o", normalise=True),
    "EMA-UW-O": recipe("ema-uw-o"),
    "IMTL-L": recipe("imtl-l", clip=5.0),
}  # the same rate, decay (none) and clip for all that learn

HARDEST = ("rescaling ×1000", "scale stress ×1000", "heterogeneous conflict")

STUDY = Study(
    name="learning-theta",
    title="Does learning θ matter?",
    question="Does BPGS improve on the inverse-loss weights of its fixed point?",
    problem="rescaling",
    conditions=elsewhere("rescaling", "rescaling", scales(pattern="single"))
    + elsewhere("scale-stress", "scale stress", scales())
    + elsewhere("heterogeneous", "heterogeneous", regimes("clean", "noisy", "conflict", "opposed")),
    methods=METHODS,
    seeds=TEN,
    metrics=("macro", "worst"),
    claims=(
        *(
            Claim(f"BPGS scores higher than {other}", f"beyond the paper, {hardest}", ahead("BPGS", [other], [hardest]))
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
            for c in COLUMNS
        ),
    ),
)
