"""The protocol that the studies of Yeast and RF1 share, as the paper's authors ran it (§5.5, docs/studies.md)."""

from collections.abc import Mapping
from typing import Any

from ..engine import Recipe, Schedule, recipe, spec
from ..engine.config import freeze_options
from .base import Condition, Saturation
from .claims import Claim, score

SEEDS = (42, 43, 44)
REAL_DATA_SCHEDULE = Schedule(
    epochs=120,
    drop_last=True,
    optimizer="adamw",
    lr=5e-4,
    weight_decay=1e-4,
    clip=1.0,
    warmup_steps=200,
    decay="cosine",
    lr_end=1e-5,
    monitor="-loss",
    patience=15,
    min_delta=1e-4,
)

# The gradient norm of all parameters, Kendall's s included, is clipped at 1. BPGS clips the network and θ at 10 each.
METHODS: Mapping[str, Recipe] = {
    "Static": recipe("static"),
    "Kendall": recipe("kendall", joined=True),
    "UWSO": recipe("uw-so"),
    "PCGrad": recipe("pcgrad"),
    "GradNormProxy": recipe("gradnorm-proxy"),
    "BPGS": recipe("bpgs", clip=10.0, network_clip=10.0),
}
OTHERS = tuple(name for name in METHODS if name != "BPGS")

RESIDUAL, PLAIN = spec("trunk", trunk="residual"), spec("trunk", trunk="plain")


def condition(key: str, part: str, **options: Any) -> Condition:
    """Return the condition of one table. All conditions except "authors" are opt-in."""
    data = freeze_options(split="published", **options)
    return Condition(key, data, part=part, opt_in=key != "authors", model=PLAIN if "plain" in key else RESIDUAL)


def chart_claims(paper: Saturation) -> tuple[Claim, ...]:
    """Return the claims on |z|/τ of BPGS. The paper uses means over each epoch, we use the end of each epoch."""
    peak, reach = score("BPGS", paper.condition, "peak"), score("BPGS", paper.condition, "reach")
    source = "Table 13, mean over seeds"
    return (
        Claim(f"BPGS ends with |z|/τ at most {paper.cap:.2f}", f"§3.4, {source}", reach < paper.cap + 0.005),
        Claim(f"BPGS never exceeds |z|/τ = {paper.largest:.4f}", source, peak < paper.largest + 5e-5),
        Claim("BPGS reaches its largest |z|/τ before the end of training", source, peak - reach > 0),
    )
