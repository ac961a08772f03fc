"""Two tasks and a penalty, in several units of the first loss: what to balance, and which factor the penalty needs.

The objective has both losses in their right units. This study is beyond the paper.
"""

from dataclasses import replace

from ..engine import Recipe, Schedule, recipe, spec
from .base import TEN_SEEDS, Condition, QuickForm, Study
from .claims import Claim, all_of, lower, score
from .penalties import BEYOND, ERROR_SHARE, OBJECTIVE, SCHEDULE

PROBLEMS = {
    "shared-code": "the image and its class from one code, and 0.01 × KL divergence",
    "few-labels": "the centre and the class of 100 labelled images, and the difference of two predictions",
}
UNITS = (1.0, 1000.0, 0.001)
UNIT_NAMES = {unit: f"×{unit:g}" for unit in UNITS}
RIGHT_UNIT = UNIT_NAMES[1.0]
RATES = (3e-3, 1e-2)
RATE_SEEDS = (0, 1)
FACTORS = (0.1, 0.01)
"""Factors of the fixed penalty besides 1, that of the objective."""

BALANCED: dict[str, Recipe] = {
    "Kendall": recipe("kendall"),
    "UW-O": recipe("uw-o"),
    "First loss": recipe("first-loss"),
    "FAMO": recipe("famo"),
    "BPGS": recipe("bpgs", clip=5.0),
    "Gradient normalisation": recipe("grad-normalise"),
    "CAGrad": recipe("cagrad"),
    "Nash-MTL": recipe("nash-mtl"),
    "BPGS + CAGrad": recipe("cagrad", weighting=recipe("bpgs", clip=5.0)),
}


def condition_key(problem: str, unit: str) -> str:
    """Return the key of a problem whose first loss has the given unit."""
    return f"{problem} {unit}"


def fixed_label(method: str, factor: float = 1.0) -> str:
    """Return the label of a method that balances the tasks, the penalty having a fixed factor."""
    return f"{method}, penalty fixed" + (f" ×{factor:g}" if factor != 1 else "")


def with_fixed_penalty(method: Recipe, factor: float) -> Recipe:
    """Return a method that balances the tasks, the penalty having a fixed factor."""
    return replace(method, options=tuple(sorted((*method.options, ("fixed", (("penalty", factor),))))))


METHODS = {
    "Sum": recipe("static"),
    **BALANCED,
    **{
        fixed_label(name, factor): with_fixed_penalty(method, factor)
        for name, method in BALANCED.items()
        for factor in (1.0, *FACTORS)
    },
}
CONDITIONS = tuple(
    Condition(condition_key(problem, name), (("unit", unit),), part=problem, head=name, problem=problem)
    for problem in PROBLEMS
    for unit, name in UNIT_NAMES.items()
)


def _in_unit(unit: float) -> list[str]:
    return [condition_key(problem, UNIT_NAMES[unit]) for problem in PROBLEMS]


CLAIMS = (
    *(
        Claim(
            f"{method} has a lower objective with the penalty fixed than with all three losses balanced, on both "
            "problems in all units",
            BEYOND,
            lower(fixed_label(method), [method], [condition.key for condition in CONDITIONS], OBJECTIVE),
        )
        for method in BALANCED
    ),
    *(
        Claim(
            f"With a factor of 1000 on the first loss, {method} with the penalty fixed has a lower objective than the "
            "plain sum on both problems",
            BEYOND,
            lower(fixed_label(method), ["Sum"], _in_unit(1000.0), OBJECTIVE),
        )
        for method in BALANCED
    ),
    *(
        Claim(
            f"With a factor of 0.001 on the first loss, {method} with the penalty fixed ends in the trivial solution "
            "on both problems: its held-out errors are above 0.9 of those of constant predictions",
            BEYOND,
            all_of(score(fixed_label(method), key, ERROR_SHARE) > 0.9 for key in _in_unit(0.001)),
        )
        for method in ("BPGS", "FAMO")
    ),
)

STUDY = Study(
    name="penalised-tasks",
    title="Two tasks and a penalty",
    question="How should tasks be balanced if the objective also has a penalty?",
    problem="",
    conditions=CONDITIONS,
    methods=METHODS,
    seeds=TEN_SEEDS,
    schedule=SCHEDULE,
    model=spec("mlp", hidden=64),
    metrics=(OBJECTIVE, ERROR_SHARE),
    rates=RATES,
    rate_seeds=RATE_SEEDS,
    claims=CLAIMS,
    quick=QuickForm(
        seeds=(0,),
        changes=(
            ("methods", {name: METHODS[name] for name in ("Sum", "BPGS", fixed_label("BPGS"), fixed_label("FAMO"))}),
            ("schedule", Schedule(epochs=10, batch_size=64, optimizer="adam")),
            ("rates", ()),
            ("rate_seeds", ()),
        ),
    ),
)
