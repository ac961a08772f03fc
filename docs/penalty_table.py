"""The table of choosing.md on objectives with a penalty: which methods ignore the input."""

from recorded_leaderboard import compared, recorded_scores

from counterpoise.lab.report.leaderboard import at_chosen_rates
from counterpoise.lab.report.leaderboard_worlds import PLAIN_SUM, method_labels
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.studies.penalties import ERROR_SHARE, LONG_EPOCHS, PROBLEMS, STUDY

SHOWN = (
    PLAIN_SUM, "ReLoBRaLo", "CAGrad", "Kendall", "IMTL-L", "PCGrad", "LRA", "Gradient normalisation", "BPGS (gradient)",
    "Nash-MTL", "BPGS + CAGrad", "First loss", "UW-O", "FAMO", "MGDA", "BPGS",
)  # fmt: skip


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
