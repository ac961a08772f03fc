"""What the studies of Yeast and RF1 share: the paper's protocol as its authors ran it (§5.5, docs/studies.md)."""

from collections.abc import Mapping
from typing import Any

from ..engine import Recipe, Schedule, recipe, spec
from ..engine.config import freeze_options
from .base import Condition, Paper, Saturation
from .claims import Claim, all_of, score

SEEDS = (42, 43, 44)
AUTHORS = Schedule(
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

# The clip is 1 on the norm of all parameters, Kendall's s among them, but 10 under BPGS, and 10 on its θ apart.
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
    """A table of a study; all but "authors" are run only where they are named."""
    data = freeze_options(split="published", **options)
    return Condition(key, data, part=part, asked=key != "authors", model=PLAIN if "plain" in key else RESIDUAL)


def paper(metrics: tuple[str, ...], rows: Mapping[str, str]) -> Paper:
    """The paper's table as it stands there, a column for each metric."""
    found: dict[str, dict[str, dict[str, tuple[float, float]]]] = {metric: {} for metric in metrics}
    for method, row in rows.items():
        for metric, cell in zip(metrics, row.split(), strict=True):
            mean, sd = map(float, cell.split("±"))
            found[metric][method] = {"authors": (mean, sd)}
    return found


def row_claims(numbers: Paper) -> tuple[Claim, ...]:
    """Each row of the table: our means within two of the paper's standard deviations of the paper's."""
    claims = []
    for method in METHODS:
        cells = {metric: numbers[metric][method]["authors"] for metric in numbers}
        text = ", ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in cells.values())
        parts = (score(method, "authors", metric).near(mean, 2 * sd) for metric, (mean, sd) in cells.items())
        claims.append(Claim(f"{method}: {text}", "Table 4, within two standard deviations", all_of(parts)))
    return tuple(claims)


def chart_claims(said: Saturation) -> tuple[Claim, ...]:
    """How near BPGS comes to the edge of its chart. The paper took epoch means, we take the end of each epoch."""
    peak, reach = score("BPGS", said.condition, "peak"), score("BPGS", said.condition, "reach")
    where = "Table 13, mean over seeds"
    return (
        Claim(f"BPGS ends with |z|/τ at most {said.cap:.2f}", f"§3.4, {where}", reach < said.cap + 0.005),
        Claim(f"BPGS never exceeds |z|/τ = {said.largest:.4f}", where, peak < said.largest + 5e-5),
        Claim("BPGS reaches its largest |z|/τ before the end of training", where, peak - reach > 0),
    )
