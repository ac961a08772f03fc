"""The worlds of the leaderboard: their recorded studies, how scores are compared, and known confounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from ..data.qm9 import TARGETS
from ..engine import Recipe
from ..metrics.dense import HIGHER_IS_BETTER, PAPER_DELTA
from ..studies import STUDIES, Study
from ..studies.penalties import LONG_EPOCHS, LONG_STUDY
from ..studies.pinn import METHODS as PINN_METHODS
from ..studies.qm9 import FEATURES, FEWER_EPOCHS, FURTHER, MAIN
from ..studies.tabular import GRADED, PLAIN

PLAIN_SUM, TUNED_SUM = "Plain sum", "Hand-tuned sum"
NAMES = {
    "static": PLAIN_SUM,
    "aligned-mtl": "Aligned-MTL",
    "gradnorm-proxy": "GradNormProxy",
    "nash-authors": "Nash-MTL (authors)",
}
"""Names of methods that differ from the labels in the studies of physics-informed networks, or are missing there."""


@dataclass(frozen=True)
class World:
    """A group of problems that a practitioner would recognise as one kind.

    Args:
        name: Anchor on the page.
        title: Title of the card.
        situation: The problems and scores in one line.
        studies: Names of its studies.
        conditions: Keys of their conditions. Default: all that are not opt-in.
        metrics: Metrics, and whether higher values are better.
        unit: How a method is compared with the plain sum: "change" of the mean metric in %, or "factor" by which the
            geometric mean of errors is lower.
        tuned_conditions: Condition → condition in which the plain sum has the weights that undo all loss factors.
        tuned_studies: Studies to which this applies.
        tuned_methods: Labels of sums with fixed weights, of which the best at the seeds of the choice is hand-tuned.
        confounds: What the comparison does not control.
        unequal: Methods whose settings differ from those of the others, and which setting.
        checks: The same problems with a setting that removes a confound. They have tables, but do not count as worlds.
    """

    name: str
    title: str
    situation: str
    studies: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    metrics: Mapping[str, bool] = field(default_factory=lambda: {"macro": True})
    unit: Literal["change", "factor"] = "change"
    tuned_conditions: Mapping[str, str] = field(default_factory=dict)
    tuned_studies: tuple[str, ...] = ()
    tuned_methods: tuple[str, ...] = ()
    confounds: tuple[str, ...] = ()
    unequal: Mapping[str, str] = field(default_factory=dict)
    checks: tuple["World", ...] = ()


RESCALED = {"×1": "×1", "×10": "×1", "×100": "×1", "×1000": "×1"}
DECAY = (
    "Adam adds the weight decay of 1e-4 to the gradient, so that methods with a smaller gradient are regularised more."
)
RATE_HELD_OUT = "The learning rate of each method is the best of three at seeds that are not counted."
PAPER_SETTINGS = "BPGS and PCGrad have the settings of the paper, all others their defaults."
ADAMW = World(
    "synthetic-adamw",
    "Synthetic stress with AdamW",
    "The same problems with a weight decay that does not depend on the size of a method's gradient",
    ("beyond-rescaling-adamw", "beyond-scale-stress-adamw", "beyond-heterogeneous-adamw"),
    tuned_conditions=RESCALED,
    tuned_studies=("beyond-rescaling-adamw",),
    confounds=(RATE_HELD_OUT, PAPER_SETTINGS),
)
LONG = World(
    "penalties-long",
    f"Penalties after {LONG_EPOCHS} epochs",
    "The same problems and more than seven times as many steps, with methods that are not worse before",
    (LONG_STUDY.name,),
    confounds=("All methods have the learning rate 0.003, which was not tuned for so many steps.",),
)

WORLDS = (
    World(
        "synthetic",
        "Synthetic stress",
        "Small networks on synthetic tasks with rescaled losses, unequal targets, noise and conflict",
        ("beyond-rescaling", "beyond-scale-stress", "beyond-heterogeneous"),
        tuned_conditions=RESCALED,
        tuned_studies=("beyond-rescaling",),
        confounds=(RATE_HELD_OUT, DECAY, PAPER_SETTINGS),
        checks=(ADAMW,),
    ),
    World(
        "tables",
        "Tabular data",
        "Seventeen real tables whose losses have similar scales",
        ("tabular",),
        tuple(condition.key for condition in PLAIN),
        confounds=(
            "The network has the same learning rate with all methods (1e-3), which was not tuned.",
            "Targets are standardised: the plain sum has the weights one would set by hand. No others were tried.",
        ),
    ),
    World(
        "tables-rescaled",
        "Rescaled tabular data",
        "The same tables with losses of different units: factors from 1 to 1000",
        ("tabular",),
        tuple(condition.key for condition in GRADED),
        tuned_conditions={graded.key: plain.key for plain, graded in zip(PLAIN, GRADED, strict=True)},
        tuned_studies=("tabular",),
        confounds=("The network has the same learning rate with all methods (1e-3), which was not tuned.",),
    ),
    World(
        "nyuv2",
        "NYUv2",
        "Segmentation, depth and surface normals of indoor images: the mean relative change of three metrics",
        ("nyuv2",),
        tuple(condition.key for condition in STUDIES["nyuv2"].conditions if not condition.options),
        metrics={name: HIGHER_IS_BETTER[name] for name in PAPER_DELTA},
        confounds=(
            "BPGS clips gradients at 10 and the others at 1, as in the paper; “BPGS (clip 1)” has equal clips.",
            "The network has the same learning rate with all methods, which was not tuned.",
            "Runs of equal settings and seed differ by up to 4 % in total loss.",
        ),
        unequal={"BPGS": "unequal clips"},
    ),
    World(
        "physics",
        "Physics",
        "Physics-informed networks after 20,000 to 50,000 steps: the relative L2 error of the solution",
        tuple(name for name in STUDIES if name.startswith("pinn-")),
        ("main",),
        metrics={"rel_l2": False},
        unit="factor",
        tuned_methods=(PLAIN_SUM, "Sum ×10", "Sum ×100", "Sum ×1000"),
        confounds=(
            RATE_HELD_OUT,
            "LRA + DCGD and NTK + DCGD are called DCGD + LRA and DCGD + NTK in their paper.",
        ),
    ),
    World(
        "penalties",
        "Penalties",
        "Objectives with a term that can be driven to zero: a KL divergence, an entropy bonus, consistency",
        ("penalties",),
        confounds=(
            "The learning rate of each method is the best of four at seeds that are not counted.",
            "A score is half of 1 minus the held-out objective relative to the error of the best constant prediction. "
            "A change of −100 % is a solution that ignores the input.",
            "The plain sum minimises this objective on the training images: its weights define the problem.",
            "The claims in the ledger were written after trial runs at two seeds, which are not counted here.",
        ),
        checks=(LONG,),
    ),
    World(
        "molecules",
        "Molecules",
        "QM9: the mean absolute errors of eleven properties",
        tuple(name for name in ("qm9",) if name in STUDIES),
        (MAIN, FURTHER, FEATURES),
        metrics={f"mae_{target}": False for target in TARGETS},
        unit="factor",
        confounds=(
            "The network has the same learning rate with all methods, which was not tuned.",
            f"Gradient-space methods have {FEWER_EPOCHS}, and compare gradients at the features.",
        ),
    ),
)


def method_labels(study: Study) -> dict[str, str]:
    """Return the name of each method of a study on the leaderboard, the same in all studies.

    Methods that train other networks (single-task training) are left out. Labels of variants, such as "BPGS (clip 1)",
    are kept.
    """
    labels: dict[str, str] = {}
    for label, recipe in study.methods.items():
        if label != study.single_task_method:
            varies = recipe.network_clip is not None and "clip" in label
            name = label if varies else _name(recipe, label)
            labels[label] = label if name in labels.values() else name
    return labels


def _name(recipe: Recipe, label: str) -> str:
    if recipe.weighting is not None:
        return f"{_name(recipe.weighting, label)} + {_name(Recipe(recipe.name, recipe.options), label)}"
    if recipe.options and recipe.name not in ("cagrad", "fairgrad"):  # whose settings follow their papers
        return _variant_names().get((recipe.name, recipe.options), label)
    return NAMES.get(recipe.name) or _variant_names().get((recipe.name, ()), label)


@cache
def recipes() -> dict[str, Recipe]:
    """Return the recipe of each method of the leaderboard by its name."""
    studies = [STUDIES[name] for world in WORLDS for name in world.studies]
    found: dict[str, Recipe] = {}
    for study in studies:
        for label, name in method_labels(study).items():
            found.setdefault(name, study.methods[label])
    return found


@cache
def other_labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of each method in tables of studies that differ from its name in more than spelling."""
    found: dict[str, dict[str, str]] = {}
    for study in STUDIES.values():
        for label, name in method_labels(study).items():
            if _letters(label) != _letters(name):
                found.setdefault(name, {}).setdefault(_letters(label), label)
    return {name: tuple(labels.values()) for name, labels in found.items()}


def _letters(label: str) -> str:
    return "".join(filter(str.isalnum, label.casefold()))


@cache
def _variant_names() -> dict[tuple[str, object], str]:
    return {(recipe.name, recipe.options): label for label, recipe in PINN_METHODS.items() if not recipe.weighting}
