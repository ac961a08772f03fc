"""Penalised objectives: an error and a penalty, which a solution that ignores the input drives to zero.

The terms of an objective have fixed weights, and the plain sum minimises it. These studies show how much methods lose
that change these weights. They are beyond the paper.
"""

from dataclasses import replace

from ..engine import Recipe, Schedule, recipe, spec
from .base import TEN_SEEDS, Condition, QuickForm, Study
from .claims import Claim, all_of, lower, score
from .pinn import GRADIENT_SPACE, ONE_PASS
from .tabular import METHODS as TABULAR

OBJECTIVE, ERROR_SHARE = "objective", "error_share"
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SCHEDULE = Schedule(epochs=40, batch_size=64, optimizer="adam")

PROBLEMS = {
    "autoencoder": "a variational autoencoder: reconstruction and KL divergence",
    "bottleneck": "an information bottleneck: cross-entropy and 0.01 × KL divergence",
    "entropy-bonus": "a policy: regret and 0.1 × the shortfall of entropy",
    "consistency": "100 labels: cross-entropy and the difference of two predictions",
}
CONDITIONS = tuple(Condition(name, (), problem=name) for name in PROBLEMS)

LEFT_OUT = (
    *("Sum ×100", "Sum ×1000", "LRA (max/mean)", "LRA (mean/mean)"),
    "NTK",  # needs residuals
    *("DCGD + LRA", "DCGD + NTK", "Nash-MTL, conditions ×3", "Nash-MTL, residual ×3"),
    *(name for name in GRADIENT_SPACE if name.startswith("Gradient normalisation + ")),
    *("Krum", "Trimmed mean"),  # need three losses
)
HYBRIDS = ("BPGS + PCGrad", "BPGS + CAGrad", "First loss + CAGrad")

METHODS: dict[str, Recipe] = {
    "Sum": ONE_PASS["Sum"],
    "Sum ×0.1": recipe("scaled-sum", factor=0.1),
    **{name: method for name, method in (ONE_PASS | GRADIENT_SPACE).items() if name not in LEFT_OUT},
    "GradNormProxy": recipe("gradnorm-proxy"),
    **{name: TABULAR[name] for name in HYBRIDS},
}

COLLAPSING = ("BPGS", "UW-O", "FAMO", "First loss", "MGDA")
"""Methods that are expected to give nearly all the weight to a penalty near zero."""
KEPT = ("Kendall", "ReLoBRaLo", "CAGrad")
"""Methods whose weights are expected to stay bounded."""
QUESTIONED = ("Nash-MTL", "Gradient normalisation", "BPGS (gradient)", "PCGrad")
"""Methods that the other studies recommend, or that never increase a loss."""
BEYOND = "beyond the paper"

CLAIMS = (
    *(
        Claim(
            f"{method} ends in the trivial solution on all four problems: its held-out error is above 0.9 of that of a "
            "constant prediction",
            BEYOND,
            all_of(score(method, name, ERROR_SHARE) > 0.9 for name in PROBLEMS),
        )
        for method in COLLAPSING
    ),
    *(
        Claim(
            f"{method} keeps the error below half of that of a constant prediction on all four problems",
            BEYOND,
            all_of(score(method, name, ERROR_SHARE) < 0.5 for name in PROBLEMS),
        )
        for method in KEPT
    ),
    *(
        Claim(
            f"The plain sum has a lower objective than {method} on all four problems",
            BEYOND,
            lower("Sum", [method], list(PROBLEMS), OBJECTIVE),
        )
        for method in QUESTIONED
    ),
)

LONG_EPOCHS = 300
NOT_WORSE = (
    *("Sum", "DWA", "IMTL-L", "Kendall", "Kendall+ℓ1", "COSMOS", "ReLoBRaLo", "SoftAdapt"),
    *("GradVac", "GradDrop", "CAGrad"),
)
"""Methods that are not shown to be worse than the plain sum after 40 epochs."""

STUDY = Study(
    name="penalties",
    title="Penalised objectives",
    question="How much do methods lose on objectives whose penalty can be driven to zero?",
    problem="",
    conditions=CONDITIONS,
    methods=METHODS,
    seeds=TEN_SEEDS,
    schedule=SCHEDULE,
    model=spec("mlp", hidden=64),
    metrics=(OBJECTIVE, ERROR_SHARE),
    rates=RATES,
    claims=CLAIMS,
    quick=QuickForm(
        seeds=(0,),
        changes=(
            ("methods", {name: METHODS[name] for name in ("Sum", "Kendall", "BPGS", "Gradient normalisation")}),
            ("schedule", Schedule(epochs=10, batch_size=64, optimizer="adam")),
            ("rates", ()),
        ),
    ),
)

LONG_STUDY = Study(
    name="penalties-long",
    title=f"Penalised objectives after {LONG_EPOCHS} epochs",
    question="Which methods that are not worse than the plain sum after 40 epochs are worse later?",
    problem="",
    conditions=CONDITIONS,
    methods={name: METHODS[name] for name in NOT_WORSE},
    seeds=TEN_SEEDS,
    schedule=replace(SCHEDULE, epochs=LONG_EPOCHS),
    model=STUDY.model,
    metrics=STUDY.metrics,
    claims=tuple(
        Claim(
            f"After {LONG_EPOCHS} epochs, {method} keeps the error below half of that of a constant prediction on all "
            "four problems",
            BEYOND,
            all_of(score(method, name, ERROR_SHARE) < 0.5 for name in PROBLEMS),
        )
        for method in NOT_WORSE
    ),
)
