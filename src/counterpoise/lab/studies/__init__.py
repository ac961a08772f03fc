"""The studies: one file per table of the paper, with its grid of runs, its numbers and its claims."""

from difflib import get_close_matches

from ..errors import UsageError
from . import (
    bpgs_sensitivity,
    heterogeneous,
    learning_theta,
    normalisation,
    nyuv2,
    nyuv2_ablation,
    nyuv2_batch_size,
    nyuv2_first_batch,
    nyuv2_overhead,
    nyuv2_stop_gradient,
    penalised_tasks,
    penalties,
    pinn_burgers,
    pinn_helmholtz,
    pinn_kirchhoff,
    pinn_klein_gordon,
    qm9,
    rescaling,
    rf1,
    scale_stress,
    tabular,
    yeast,
)
from .all_methods import ALL_METHODS_STUDIES
from .base import Cell, Condition, Study

PAPER_STUDIES = (rescaling.STUDY, normalisation.STUDY, scale_stress.STUDY, heterogeneous.STUDY)
NYUV2_STUDIES = (
    nyuv2.STUDY,
    nyuv2_ablation.STUDY,
    nyuv2_stop_gradient.STUDY,
    nyuv2_batch_size.STUDY,
    nyuv2_first_batch.STUDY,
    nyuv2_overhead.STUDY,
)
PINN_STUDIES = (pinn_helmholtz.STUDY, pinn_burgers.STUDY, pinn_klein_gordon.STUDY, pinn_kirchhoff.STUDY)
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *PAPER_STUDIES,
        yeast.STUDY,
        rf1.STUDY,
        *NYUV2_STUDIES,
        tabular.STUDY,
        learning_theta.STUDY,
        bpgs_sensitivity.STUDY,
        *ALL_METHODS_STUDIES,
        penalties.STUDY,
        penalties.LONG_STUDY,
        penalised_tasks.STUDY,
        *PINN_STUDIES,
        qm9.STUDY,
    )
}


SATURATION = "saturation"
"""Name of the table on |z|/τ of BPGS, which is computed from the runs of several studies."""


def saturation_studies() -> list[Study]:
    """Return the studies that have a row in the paper's table on saturation."""
    return [study for study in STUDIES.values() if study.saturation is not None]


def find_study(name: str) -> Study:
    """Return a study by its name.

    Raises:
        UsageError: If there is no such study. The message suggests the closest name.
    """
    if name in STUDIES:
        return STUDIES[name]
    near = get_close_matches(name.lower().replace("_", "-").replace("normaliz", "normalis"), STUDIES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(STUDIES)}"
    raise UsageError(f"unknown study {name!r}: {hint}")


__all__ = [
    "NYUV2_STUDIES",
    "PAPER_STUDIES",
    "PINN_STUDIES",
    "SATURATION",
    "STUDIES",
    "Cell",
    "Condition",
    "Study",
    "find_study",
    "saturation_studies",
]
