"""The tables of choosing.md on objectives with a penalty: which methods ignore the input."""

import pandas as pd
from recorded_leaderboard import compared, recorded_scores

from counterpoise.lab.report.leaderboard import at_chosen_rates
from counterpoise.lab.report.leaderboard_worlds import PLAIN_SUM, method_labels
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.report.run_scores import without_rate_seeds
from counterpoise.lab.studies import penalised_tasks
from counterpoise.lab.studies.penalised_tasks import UNIT_NAMES, condition_key, fixed_label
from counterpoise.lab.studies.penalties import ERROR_SHARE, LONG_EPOCHS, OBJECTIVE, PROBLEMS, STUDY

SHOWN = (
    PLAIN_SUM, "ReLoBRaLo", "CAGrad", "Kendall", "IMTL-L", "PCGrad", "LRA", "Gradient normalisation", "BPGS (gradient)",
    "Nash-MTL", "BPGS + CAGrad", "First loss", "UW-O", "FAMO", "MGDA", "BPGS",
)  # fmt: skip

SHOWN_ON_TASKS = {
    "Sum": (),
    "First loss": (1.0, 0.1),
    "UW-O": (1.0,),
    "FAMO": (1.0, 0.01),
    "BPGS": (1.0, 0.01),
    "Kendall": (1.0,),
    "Gradient normalisation": (1.0, 0.01),
    "CAGrad": (1.0,),
    "Nash-MTL": (1.0,),
    "BPGS + CAGrad": (1.0, 0.01),
}
"""Methods that are shown on two tasks and a penalty, with factors of the fixed penalty relative to the objective."""


def penalty_table() -> str:
    """Return the held-out errors relative to a constant prediction, and the scores against the plain sum."""
    frame = at_chosen_rates(STUDY, recorded_scores()[STUDY.name])
    frame = frame.assign(method=frame["method"].map(method_labels(STUDY)))
    shares = frame.pivot_table(ERROR_SHARE, "method", "condition")
    rows = [
        [method, *(f"{shares.loc[method, problem]:.2f}" for problem in PROBLEMS), *changes(method)] for method in SHOWN
    ]
    heads = ["method", *PROBLEMS, "change of score", f"the same after {LONG_EPOCHS} epochs"]
    return markdown_table(heads, rows, right=range(1, len(PROBLEMS) + 1))


def changes(method: str) -> list[str]:
    """Return the score of a method against that of the plain sum, also after many epochs."""
    if method == PLAIN_SUM:
        return ["", ""]
    found = (compared(world, method) for world in ("penalties", "penalties-long"))
    return ["not run" if text == "–" else text for text in found]


def mean_objectives() -> pd.DataFrame:
    """Return the mean held-out objective of each method on two tasks and a penalty, by condition."""
    study = penalised_tasks.STUDY
    frame = without_rate_seeds(study, recorded_scores()[study.name])
    return frame.pivot_table(OBJECTIVE, "method", "condition")


def tasks_table() -> str:
    """Return the held-out objectives of methods on two tasks and a penalty, by problem and unit of the first loss."""
    means = mean_objectives()
    conditions = [condition_key(problem, unit) for problem in penalised_tasks.PROBLEMS for unit in UNIT_NAMES.values()]
    rows = []
    for method, factors in SHOWN_ON_TASKS.items():
        shown = [(method, "balanced" if factors else "summed")]
        shown += [(fixed_label(method, factor), f"factor ×{factor:g}") for factor in factors]
        rows += [[method, how, *(f"{means.loc[label, c]:.3f}" for c in conditions)] for label, how in shown]
    return markdown_table(["method", "penalty", *conditions], rows, right=range(2, 2 + len(conditions)))
