"""QM9: eleven properties of molecules, in the set-up of Navon et al. (2022, https://arxiv.org/abs/2202.01017).

Nash-MTL, FAMO, FairGrad and others report Δm in this set-up: the mean change of the mean absolute errors relative to
single-task models, in %.
"""

from typing import Any

from ..engine import Recipe, Schedule, recipe, spec
from ..engine.config import freeze_options
from .base import BPGS, BPGS_RAW, BPGS_RAW_LABEL, Condition, QuickForm, Study
from .claims import Claim, lower, score
from .qm9_published import CHANGE, ERRORS, published_table

SEEDS = (42, 43, 44)
KENDALL_SEEDS = (45, 46)
"""Further seeds of Kendall, whose Δm is lower than the published one: they show how far it depends on the seed."""
SHORTER = {"epochs": 284}
"""Runs that ended before epoch 300, when the time on the GPU was used up. Their learning rates were at the minimum."""
METRICS = (CHANGE, *ERRORS)
MAIN, FURTHER = "main", "further methods"
FEATURES, PARAMETERS = "gradients at the features", "shared parameters"
FURTHER_SEEDS = "further seeds"
RAW, SANITISED, RERUN = "raw targets", "sanitised features", "set-up of NTKMTL"
TOLERANCE = 0.15  # relative, of a reproduced Δm
REPRODUCED = ("Sum", "SI", "Kendall", "FAMO")
BEYOND = "beyond the papers"

SCHEDULE = Schedule(
    epochs=300, batch_size=120, optimizer="adam", lr=1e-3, decay="plateau", lr_end=1e-5, precision="fp16",
    monitor="-mae_change", report="best",
)  # fmt: skip
FEWER_EPOCHS = f"{SHORTER['epochs']} epochs instead of {SCHEDULE.epochs}"
NTKMTL_SCHEDULE = {"batch_size": 60, "decay": "plateau-10"}
NETWORK = spec("mpnn", width=64, edge_width=128)

# The authors' learning rate of the weights of Kendall is 0.025. FAMO's defaults are those of its authors on QM9. The
# weights of SI (log losses) and of UW-O are equal.
MAIN_METHODS: dict[str, Recipe] = {
    "Sum": recipe("static"),
    "SI": recipe("uw-o"),
    "Kendall": recipe("kendall", lr=0.025),
    "FAMO": recipe("famo"),
    "BPGS": BPGS,
    "First loss": recipe("first-loss"),
    "Gradient normalisation": recipe("grad-normalise"),
    "BPGS (gradient)": recipe("bpgs", clip=5.0, statistic="gradient"),
}
FURTHER_METHODS: dict[str, Recipe] = {
    "RLW": recipe("rlw"),
    "DWA": recipe("dwa"),
    "IMTL-L": recipe("imtl-l", lr=0.025),
    "Kendall (rate 0.001)": recipe("kendall", lr=0.001),  # the rate of the network: may explain a difference
    BPGS_RAW_LABEL: BPGS_RAW,
    "BPGS (frozen θ)": recipe("bpgs", clip=5.0, lr=0.0),
}
# The authors clip the norm of the combined gradient at 1.
GRADIENT_SPACE: dict[str, Recipe] = {
    "PCGrad": recipe("pcgrad"),
    "CAGrad": recipe("cagrad", alpha=0.4, network_clip=1.0),
    "IMTL-G": recipe("imtl-g"),
    "Nash-MTL": recipe("nash-mtl", network_clip=1.0),
    "FairGrad": recipe("fairgrad", alpha=2.0, network_clip=1.0),
}
METHODS = MAIN_METHODS | FURTHER_METHODS | GRADIENT_SPACE

COMPARED = {name: METHODS[name] for name in (*REPRODUCED, "BPGS")}
"""Methods of the conditions that differ from the set-up in one point."""

PAPER = published_table((MAIN, FURTHER, RAW, SANITISED), PARAMETERS, FEATURES, RERUN)
PUBLISHED = {method: cells[MAIN] for method, cells in PAPER[CHANGE].items()}
"""Published Δm in %: mean and standard deviation over three seeds."""


def condition(
    key: str, methods: dict[str, Recipe], part: str = "", schedule: dict[str, Any] | None = None, **options: Any
) -> Condition:
    """Return a condition for some methods. All but the main one are opt-in."""
    changes = freeze_options(**(schedule or {}))
    return Condition(
        key, freeze_options(**options), part=part, schedule=changes, only=tuple(methods), opt_in=key != MAIN
    )


CLAIMS = (
    *(
        Claim(
            f"{method}: Δm {PUBLISHED[method][0]:.1f} %",
            "published, within 15 %",
            score(method, MAIN, CHANGE).near(PUBLISHED[method][0], TOLERANCE * PUBLISHED[method][0]),
        )
        for method in REPRODUCED
    ),
    *(
        Claim(f"BPGS has a lower Δm than {other}", BEYOND, lower("BPGS", [other], [MAIN], CHANGE))
        for other in ("Kendall", "SI", "FAMO", "Sum", "First loss")
    ),
    Claim(
        "BPGS on gradients has a lower Δm than BPGS on losses",
        BEYOND,
        lower("BPGS (gradient)", ["BPGS"], [MAIN], CHANGE),
    ),
)

QUICK_METHODS = {name: METHODS[name] for name in ("Sum", "SI", "Kendall", "FAMO", "BPGS", "First loss")}

STUDY = Study(
    name="qm9",
    title="QM9",
    question="How does BPGS compare with published methods on eleven properties whose errors differ in scale?",
    problem="qm9",
    conditions=(
        condition(MAIN, MAIN_METHODS),
        condition(FURTHER, FURTHER_METHODS, "further methods"),
        condition(FEATURES, GRADIENT_SPACE, f"gradients compared at the features; {FEWER_EPOCHS}", SHORTER),
        condition(PARAMETERS, GRADIENT_SPACE, "gradients compared on the shared parameters", compared="parameters"),
        condition(FURTHER_SEEDS, {"Kendall": METHODS["Kendall"]}, f"further seeds; {FEWER_EPOCHS}", SHORTER),
        condition(RAW, COMPARED, "targets that are not standardised", targets="raw"),
        condition(SANITISED, COMPARED, "features with aromaticity and hybridisation", sanitised=True),
        condition(
            RERUN, COMPARED, "batches of 60 molecules and a patience of ten epochs, as in NTKMTL", NTKMTL_SCHEDULE
        ),
    ),
    methods=METHODS,
    seeds=SEEDS,
    ten_seeds=SEEDS,
    schedule=SCHEDULE,
    model=NETWORK,
    metrics=METRICS,
    further_metrics=("mae_change_validation",),
    layout="metrics",
    paper_seeds_only=True,
    paper=PAPER,
    claims=CLAIMS,
    quick=QuickForm(
        seeds=(0,),
        changes=(
            ("methods", QUICK_METHODS),
            ("conditions", (condition(MAIN, QUICK_METHODS, molecules=5000),)),
            ("schedule", Schedule(epochs=6, batch_size=120, decay="plateau", lr_end=1e-5, monitor="-mae_change")),
            ("model", spec("mpnn", width=16, edge_width=32)),
        ),
    ),
)  # fmt: skip
