"""Seventeen tabular data sets with seventeen methods and single-task training: ranks and invariance to loss factors.

This study is beyond the paper.
"""

from dataclasses import replace
from typing import Any

from ..data import CATALOGUE
from ..data.tabular import CatalogueEntry, training_rows
from ..engine import Schedule, recipe, spec
from ..engine.config import freeze_options
from .base import Condition, QuickForm, Study
from .claims import Claim, Quantity, mean_of, score

FOLDS = tuple(range(10))  # five folds, twice; data sets with a published split use ten seeds
SCALE = 1000.0
LEARNED: dict[str, Any] = {"clip": 10.0}  # learned weights are clipped separately, at the network's value

METHODS = {
    "Static": recipe("static"),
    "Kendall": recipe("kendall", **LEARNED),
    "UWSO": recipe("uw-so"),
    "PCGrad": recipe("pcgrad"),
    "GradNormProxy": recipe("gradnorm-proxy"),
    "BPGS": recipe("bpgs", **LEARNED),
    "UW-O": recipe("uw-o"),
    "IMTL-L": recipe("imtl-l", **LEARNED),
    "FAMO": recipe("famo"),
    "CAGrad": recipe("cagrad"),
    "Nash-MTL": recipe("nash-mtl"),
    "BPGS + PCGrad": recipe("pcgrad", weighting=recipe("bpgs", **LEARNED)),
    "BPGS + CAGrad": recipe("cagrad", weighting=recipe("bpgs", **LEARNED)),
    "First loss + CAGrad": recipe("cagrad", weighting=recipe("first-loss")),
    "First loss": recipe("first-loss"),
    "Gradient normalisation": recipe("grad-normalise"),
    "BPGS (gradient)": recipe("bpgs", **LEARNED, statistic="gradient"),
}
SINGLE = "Single-task"

SCHEDULE = Schedule(
    epochs=100,
    optimizer="adamw",
    lr=1e-3,
    weight_decay=1e-4,
    clip=10.0,
    monitor="-loss",
    patience=15,
    min_delta=1e-4,
    report="best",
)


def batch_size(entry: CatalogueEntry) -> int:
    """Return a batch size that gives about 10 to 40 steps per epoch."""
    rows = training_rows(entry)
    return 16 if rows < 300 else 32 if rows < 1000 else 128


def conditions(scale: float, part: str) -> tuple[Condition, ...]:
    """Return one condition per data set."""
    plain = scale == 1.0
    return tuple(
        Condition(
            entry.name if plain else f"{entry.name} ×{scale:g}",
            freeze_options(split="folds", targets="train", scale=scale, pattern="graded"),
            part=part,
            head=entry.name,
            problem=entry.name,
            schedule=(("batch_size", batch_size(entry)),),
            only=() if plain else tuple(METHODS),
            targets=entry.targets,
        )
        for entry in CATALOGUE.values()
    )


PLAIN, GRADED = conditions(1.0, "unscaled losses"), conditions(SCALE, f"graded factors up to ×{SCALE:g}")


def mean_drop(method: str) -> Quantity:
    """Return the drop of a method's score by the graded factors, averaged over data sets."""
    return mean_of(score(method, p.key) - score(method, g.key) for p, g in zip(PLAIN, GRADED, strict=True))


STUDY = Study(
    name="tabular",
    title="Seventeen tabular data sets",
    question="How do the methods rank on real tabular data, and which are invariant to rescaling the losses?",
    problem="",
    conditions=PLAIN + GRADED,
    methods={**METHODS, SINGLE: recipe("static")},
    single_task_method=SINGLE,
    seeds=FOLDS,
    ten_seeds=FOLDS,
    schedule=SCHEDULE,
    model=spec("trunk", trunk="plain", width=128, head=0),
    layout="ranks",
    quick=QuickForm(seeds=(0, 1), changes=(("schedule", replace(SCHEDULE, epochs=10)),)),
    claims=tuple(
        Claim(
            f"Graded factors change the mean score of {method} over data sets by less than 0.01",
            "beyond the paper",
            (mean_drop(method) < 0.01) & (mean_drop(method) > -0.01),
        )
        for method in METHODS
    ),
)
