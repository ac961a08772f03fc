"""What the studies of physics-informed networks share: methods, schedule, published numbers and claims.

The set-up is that of Hwang and Lim (2024), table 1 (https://arxiv.org/abs/2409.18426).
"""

from collections.abc import Mapping
from dataclasses import replace

from ..engine import Recipe, Schedule, recipe, spec
from .base import Condition, QuickForm, Study
from .claims import Claim, all_of, lower, score
from .paper_tables import Paper, parse_metrics_table

RATES = (1e-3, 1e-4, 1e-5)
RATE_SEEDS = (100, 101)
SEEDS = tuple(range(5, 15))
EPOCHS, STEPS = 50, 1000
BOUNDARY_POINTS = 128
METRICS = ("rel_l2",)
FURTHER_METRICS = ("rel_l2_last", "training_loss")
SOURCE = "Hwang and Lim 2024, table 1"
MAIN = "main"

SCHEDULE = Schedule(epochs=EPOCHS, batch_size=1280, optimizer="adam", lr=1e-3, decay="exponential", shared="all")
NETWORK = spec("pinn", width=50, depth=3)

LRA = recipe("lra")
NORMALISE = recipe("grad-normalise")

ONE_PASS: dict[str, Recipe] = {
    "Sum": recipe("static"),
    "Sum ×10": recipe("scaled-sum", factor=10.0),
    "Sum ×100": recipe("scaled-sum", factor=100.0),
    "Sum ×1000": recipe("scaled-sum", factor=1000.0),
    "LRA": LRA,
    "LRA (max/mean)": recipe("lra", form="max-mean"),
    "LRA (mean/mean)": recipe("lra", form="mean-mean"),
    "NTK": recipe("ntk"),
    "Gradient normalisation": NORMALISE,
    "BPGS (gradient)": recipe("bpgs", clip=5.0, statistic="gradient"),
    "BPGS": recipe("bpgs", clip=5.0),
    "UW-O": recipe("uw-o"),
    "EMA-UW-O": recipe("ema-uw-o"),
    "UW-SO": recipe("uw-so"),
    "GLS": recipe("gls"),
    "FAMO": recipe("famo"),
    "Kendall": recipe("kendall"),
    "IMTL-L": recipe("imtl-l"),
    "ReLoBRaLo": recipe("relobralo"),
    "SoftAdapt": recipe("softadapt"),
    "DWA": recipe("dwa"),
    "RLW": recipe("rlw"),
    "CoV weighting": recipe("cov-weighting"),
    "First loss": recipe("first-loss"),
    "GO4Align": recipe("go4align"),
    "GradNorm": recipe("gradnorm", clip=5.0),
    "Kendall+ℓ1": recipe("kendall-l1"),
    "STCH": recipe("stch"),
    "COSMOS": recipe("cosmos"),
    "PBI": recipe("pbi"),
}
"""Methods of loss space and gradient scale, which need one backward pass.

GradNormProxy is missing: it counts its steps in Python, and the replayed CUDA graph of a step would never update it.
"""

GRADIENT_SPACE: dict[str, Recipe] = {
    "PCGrad": recipe("pcgrad"),
    "MGDA": recipe("mgda"),
    "CAGrad": recipe("cagrad"),
    "Aligned-MTL": recipe("aligned-jacobi"),
    "DCGD": recipe("dcgd"),
    "DCGD + LRA": recipe("dcgd", weighting=LRA),
    "DCGD + NTK": recipe("dcgd", weighting=recipe("ntk")),
    "UPGrad": recipe("upgrad"),
    "ConFIG": recipe("config"),
    "M-ConFIG": recipe("m-config"),
    "Nash-MTL": recipe("nash-mtl"),
    "Nash-MTL, conditions ×3": recipe("scaled-nash", factor=3.0),
    "Nash-MTL, residual ×3": recipe("scaled-nash", factor=1 / 3),
    "IMTL-G": recipe("imtl-g"),
    "FairGrad": recipe("fairgrad"),
    "GradVac": recipe("gradvac"),
    "GradDrop": recipe("graddrop"),
    "SDMGrad": recipe("sdmgrad"),
    "DB-MTL": recipe("db-mtl"),
    "MoCo": recipe("moco"),
    "DualProj": recipe("dualproj"),
    "PIVRG": recipe("pivrg"),
    "IMTL": recipe("imtl"),
    "Excess-MTL": recipe("excess-mtl"),
    "PCD": recipe("pcd"),
    "CR-MOGM": recipe("cr-mogm"),
    "Krum": recipe("krum"),
    "Trimmed mean": recipe("trimmed-mean"),
    "Gradient normalisation + PCGrad": recipe("pcgrad", weighting=NORMALISE),
    "Gradient normalisation + UPGrad": recipe("upgrad", weighting=NORMALISE),
    "Gradient normalisation + ConFIG": recipe("config", weighting=NORMALISE),
    "Gradient normalisation + DCGD": recipe("dcgd", weighting=NORMALISE),
    "Gradient normalisation + Nash-MTL": recipe("nash-mtl", weighting=NORMALISE),
}

METHODS: Mapping[str, Recipe] = ONE_PASS | GRADIENT_SPACE

COLUMNS = ("Sum", "LRA", "PCGrad", "MGDA", "CAGrad", "Aligned-MTL", "DCGD", "DCGD + LRA")
"""Rows of the published table that are run here."""

SEARCH_SEEDS = tuple(range(5))
SEARCHED = (
    "Gradient normalisation",
    "BPGS (gradient)",
    *("LRA", "LRA (mean/mean)", "PCGrad", "UPGrad", "ConFIG", "DCGD", "DCGD + LRA"),
    *("Nash-MTL", "Nash-MTL, conditions ×3", "Nash-MTL, residual ×3"),
    *(f"Gradient normalisation + {method}" for method in ("PCGrad", "UPGrad", "ConFIG", "DCGD", "Nash-MTL")),
)
"""Methods of the search for a better one, on Helmholtz and Burgers at seeds that the tables do not show."""

SHORT, SHORT_EPOCHS = "10,000 steps", 10
FURTHER = (
    *("Sum", "Nash-MTL", "DCGD", "UPGrad"),
    *("ConFIG", "M-ConFIG", "IMTL-G", "FairGrad", "GradVac", "GradDrop", "SDMGrad", "DB-MTL", "MoCo", "DualProj"),
    *("PIVRG", "IMTL", "Excess-MTL", "PCD", "CR-MOGM", "Krum", "Trimmed mean"),
    *(f"Gradient normalisation + {method}" for method in ("UPGrad", "ConFIG", "Nash-MTL")),
)
"""Gradient-space methods that are recorded after fewer steps only, and four others to compare them with."""

COLLAPSING = ("BPGS", "UW-O", "EMA-UW-O", "GLS")
"""Methods that divide by the losses. A boundary loss that u = 0 solves exactly gets all the weight."""

BEST_PUBLISHED = "DCGD + LRA"
CANDIDATE = "Nash-MTL"
"""The method that is compared with the best published row: the best of the gradient-space methods on Helmholtz and
Burgers, before Klein-Gordon was run."""


def condition(
    form: str, *, key: str = MAIN, interior: int = 1280, boundary: int = BOUNDARY_POINTS, decay: str = "exponential"
) -> Condition:
    """Return a condition with the given losses, numbers of points and decay. All but the main one are opt-in."""
    options = (("boundary", boundary), ("form", form), ("interior", interior))
    schedule = () if decay == SCHEDULE.decay else (("decay", decay),)
    part = f"{form} losses, {interior} points inside"
    part += f", {boundary} on each side" if boundary != BOUNDARY_POINTS else ""
    part += ", constant learning rate" if schedule else ""
    return Condition(key, options, part=part, opt_in=key != MAIN, schedule=schedule)


def shortened(condition: Condition) -> Condition:
    """Return a condition with fewer steps, for methods that take long."""
    part = f"{condition.part}, {SHORT}"
    return replace(condition, key=SHORT, part=part, opt_in=True, schedule=(("epochs", SHORT_EPOCHS),))


def published(rows: Mapping[str, str]) -> Paper:
    """Parse a column of the published table: method → mean±deviation."""
    return parse_metrics_table(MAIN, ("rel_l2",), rows)


def two_deviations(mean: float, sd: float) -> float:
    """Return the factor from a published error to two standard deviations above it.

    The same factor limits errors below: two deviations below the mean may be negative, so that an error many times
    smaller than published would agree with it.
    """
    return 1 + 2 * sd / mean


def claims(paper: Paper, title: str) -> tuple[Claim, ...]:
    """Return the claims of the study of an equation with the given published errors and title."""
    errors = {method: values[MAIN] for method, values in paper["rel_l2"].items()}
    best, _ = errors[BEST_PUBLISHED]
    beyond = f"beyond the paper, {title}"
    return (
        *(
            Claim(
                f"{method}: {errors[method][0]:.4f} ± {errors[method][1]:.4f}",
                f"{SOURCE}, {title}: within two standard deviations above, the same factor below",
                score(method, MAIN, "rel_l2").within_factor(errors[method][0], two_deviations(*errors[method])),
            )
            for method in COLUMNS
        ),
        *candidate_claims(best, beyond),
        Claim(
            "Methods that divide by the losses collapse: their error is above 0.9",
            beyond,
            all_of(score(method, MAIN, "rel_l2") > 0.9 for method in COLLAPSING),
        ),
    )


def candidate_claims(best: float, source: str, condition: str = MAIN, suffix: str = "") -> tuple[Claim, ...]:
    """Return the claims that the candidate is ahead of the best published row, and of our runs of it."""
    return (
        Claim(
            f"{CANDIDATE} has a lower error than the best published row, {best:.4f}{suffix}",
            source,
            score(CANDIDATE, condition, "rel_l2") < best,
        ),
        Claim(
            f"{CANDIDATE} has a lower error than {BEST_PUBLISHED}{suffix}",
            source,
            lower(CANDIDATE, [BEST_PUBLISHED], [condition], "rel_l2"),
        ),
    )


def quick_form() -> QuickForm:
    """Return a form of four epochs with fewer points, at one seed, that shows the collapse and its cure."""
    shown = ("Sum", "BPGS", "UW-O", "BPGS (gradient)", "Gradient normalisation", "LRA")
    return QuickForm(
        seeds=(0,),
        changes=(
            ("methods", {name: METHODS[name] for name in shown}),
            ("conditions", (condition("two", interior=256, boundary=64),)),
            ("schedule", Schedule(epochs=4, batch_size=256, optimizer="adam", decay="exponential", shared="all")),
            ("rates", ()),
            ("rate_seeds", ()),
        ),
    )


def make_study(
    name: str,
    title: str,
    question: str,
    problem: str,
    conditions: tuple[Condition, ...],
    paper: Paper,
    further_claims: tuple[Claim, ...] = (),
) -> Study:
    """Return the study of an equation in the published set-up.

    Args:
        name: name of the study.
        title: title in tables and figures.
        question: the question that the study answers.
        problem: name of the equation.
        conditions: the forms of the losses; the first is compared with the published numbers.
        paper: the published errors.
        further_claims: claims about other conditions.
    """
    return Study(
        name=name,
        title=title,
        question=question,
        problem=problem,
        conditions=(*conditions, shortened(conditions[0])),
        methods=METHODS,
        seeds=SEEDS,
        ten_seeds=SEEDS,
        schedule=SCHEDULE,
        model=NETWORK,
        metrics=METRICS,
        further_metrics=FURTHER_METRICS,
        decimals=4,
        layout="metrics",
        paper_seeds_only=True,
        rates=RATES,
        rate_seeds=RATE_SEEDS,
        paper=paper,
        claims=(*claims(paper, title), *further_claims),
    )
