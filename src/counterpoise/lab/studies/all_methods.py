"""The paper's synthetic studies with every method that has recorded runs, each at the best of three learning rates.

The normalisation ablation is the rescaling grid at other seeds, so it has no study of its own here.
"""

from collections.abc import Mapping
from dataclasses import replace

from ..engine import Recipe, recipe
from . import heterogeneous, rescaling, scale_stress
from .base import BPGS, BPGS_RAW, BPGS_RAW_LABEL, KENDALL, KENDALL_L1, PCGRAD, UWSO, Study

RATES = (1e-3, 3e-3, 1e-2)

LABELS = {
    "aligned-mtl": "Aligned-MTL",
    "bpgs": "BPGS",
    "cagrad": "CAGrad",
    "db-mtl": "DB-MTL",
    "dwa": "DWA",
    "ema-uw-o": "EMA-UW-O",
    "excess-mtl": "Excess-MTL",
    "fairgrad": "FairGrad",
    "famo": "FAMO",
    "first-loss": "First loss",
    "gls": "GLS",
    "grad-normalise": "Gradient normalisation",
    "graddrop": "GradDrop",
    "gradnorm": "GradNorm",
    "gradnorm-proxy": "GradNormProxy",
    "gradvac": "GradVac",
    "imtl": "IMTL",
    "imtl-g": "IMTL-G",
    "imtl-l": "IMTL-L",
    "kendall": "Kendall",
    "kendall-l1": "Kendall+ℓ1",
    "mgda": "MGDA",
    "moco": "MoCo",
    "nash-mtl": "Nash-MTL",
    "pcgrad": "PCGrad",
    "rlw": "RLW",
    "sdmgrad": "SDMGrad",
    "static": "Sum",
    "stch": "STCH",
    "upgrad": "UPGrad",
    "uw-o": "UW-O",
    "uw-so": "UWSO",
}
"""Name → label of the methods with recorded runs (results/beyond). Add a method together with its runs.

DTP and Auto-Lambda are left out: with their indicators or second batch they would see data that the others do not see.
"""

PAPER_RECIPES = {"bpgs": BPGS, "kendall": KENDALL, "kendall-l1": KENDALL_L1, "uw-so": UWSO, "pcgrad": PCGRAD}


def all_methods() -> Mapping[str, Recipe]:
    """Return the recipes of all recorded methods, of forms of BPGS, and of hybrids with BPGS or the first losses."""
    recipes = {label: PAPER_RECIPES.get(name, recipe(name, clip=5.0)) for name, label in LABELS.items()}
    recipes[BPGS_RAW_LABEL] = BPGS_RAW
    recipes["BPGS (gradient)"] = recipe("bpgs", clip=5.0, statistic="gradient")
    for name in ("pcgrad", "cagrad", "nash-mtl"):
        recipes[f"BPGS + {LABELS[name]}"] = recipe(name, weighting=BPGS)
    recipes["First loss + CAGrad"] = recipe("cagrad", weighting=recipe("first-loss"))
    return recipes


def with_all_methods(study: Study) -> Study:
    """Return a study with all methods and several learning rates, without the paper's numbers."""
    return replace(
        study,
        name=f"beyond-{study.name}",
        title=f"{study.title}, every method",
        conditions=tuple(c for c in study.conditions if not c.extra),
        methods=all_methods(),
        seeds=study.ten_seeds,
        ddof=1,
        rates=RATES,
        paper={},
        claims=(),
    )


def with_adamw(study: Study) -> Study:
    """Return a study with AdamW, whose weight decay does not depend on the size of a method's gradient."""
    schedule = replace(study.schedule, optimizer="adamw")
    return replace(study, name=f"{study.name}-adamw", title=f"{study.title} (AdamW)", schedule=schedule)


ADAM_STUDIES = tuple(with_all_methods(m.STUDY) for m in (rescaling, scale_stress, heterogeneous))
ALL_METHODS_STUDIES = (*ADAM_STUDIES, *map(with_adamw, ADAM_STUDIES))
