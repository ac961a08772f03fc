"""The table on which method to use, the same in the README, index.md and choosing.md."""

from penalty_table import mean_objectives
from pinn_recommendation import pinn_row
from recorded_leaderboard import decided, gain, method_and_gain, recorded_board, unknown_case

from counterpoise.lab.report.leaderboard_answers import WARNED
from counterpoise.lab.report.leaderboard_text import join, single_exceptions, verdict, without_interval
from counterpoise.lab.studies.penalised_tasks import RIGHT_UNIT, fixed_label

SCALE_METHODS = ("FAMO", "UW-O", "BPGS", "Gradient normalisation", "First loss")
"""Methods that are recommended for losses of different scale."""
TRIVIAL = 1.9
"""An objective of two tasks and a penalty near that of constant predictions, which is 2."""
USE = {
    "First loss": "`cp.FirstLoss`", "UW-O": "`cp.UWO`", "BPGS": "`cp.BPGS`", "FAMO": "`cp.FAMO`³",
    "Gradient normalisation": "`cp.GradNormalise`²", "Nash-MTL": "`cp.NashMTL`¹",
}  # fmt: skip
"""How the README names the methods, with the number of the note on their cost."""


def which_method(prefix: str = "") -> str:
    """Return the table of the README, `prefix` being the path of the documentation."""
    rows = (
        pinn_row(),
        (
            "include a penalty that can be driven to zero (a KL term), or a negative loss",
            "`cp.Static` for all; if the others are tasks of different scale, `cp.FirstLoss(…, fixed={…})`",
            penalties(),
        ),
        ("have similar scales", "`cp.Static` or `cp.NashMTL`¹", similar_scales()),
        (
            "are supervised losses that differ by more than a factor of ten, none of which can reach zero",
            f"{join([USE[method] for method in SCALE_METHODS])}",
            different_scales(),
        ),
        (
            "as above, and one backward pass per task is affordable",
            "`cp.CAGrad(…, weighting=cp.BPGS(…))`¹, or `weighting=cp.FirstLoss(…)`",
            scale_and_gradients(),
        ),
        (
            "are not known well enough to choose a row, and none is a penalty",
            join([USE[m] for m in unknown_case().methods]),
            unknown_scales(),
        ),
    )
    lines = ["| Your losses | Use | Why |", "| --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(
        [
            *lines,
            "",
            "¹ One backward pass per loss. ² One per loss in some steps. ³ A second forward pass. Comparisons are with "
            f"the plain sum of the losses ([all]({prefix}leaderboard.md)).",
        ]
    )


def penalties() -> str:
    """Say what methods that other rows recommend do to an objective with a penalty."""
    found = [f"{gain('penalties', method, interval=False)} with {method}" for method in WARNED]
    cause = "weights that grow as a loss vanishes lead towards a trivial solution (score −100 %)"
    return f"{cause}: {join(found, 'and')}. {tasks_and_penalty()}"


def tasks_and_penalty() -> str:
    """Compare First loss with the sum, and name methods that may fail, on tasks in a wrong unit and a penalty."""
    means = mean_objectives()
    wrong = [key for key in means.columns if not key.endswith(f" {RIGHT_UNIT}")]
    changes = 100 * (means.loc[fixed_label("First loss"), wrong] / means.loc["Sum", wrong] - 1)
    failing = [method for method in ("BPGS", "FAMO") if (means.loc[fixed_label(method), wrong] > TRIVIAL).any()]
    assert (changes < 0).all()
    return (
        f"With two tasks in a wrong unit and the penalty fixed, the objective of First loss is {-changes.max():.0f} to "
        f"{-changes.min():.0f} % lower than that of the sum, while {join(failing, 'and')} may collapse"
    )


def similar_scales() -> str:
    """Say which methods score higher than the plain sum on tables without factors."""
    tables = recorded_board()["tables"]
    better = join([method_and_gain(s, "tables") for s in decided(tables, 1)], "and")
    only = f"only {better} scores detectably higher" if better else "no method scores detectably higher"
    nyu = recorded_board()["nyuv2"]
    gains = {method: gain("nyuv2", method, interval=False) for method in ("BPGS", "Nash-MTL")}
    shown = {s.method for s in decided(nyu, 1)}
    dense = [f"{method} {value}{'' if method in shown else ' (undecided)'}" for method, value in gains.items()]
    return (
        f"on {len(tables.problems)} tables {only}; BPGS: {gain('tables', 'BPGS', interval=False)}. On NYUv2, whose "
        f"tasks differ in difficulty, {join(dense, 'and')}, at the expense of segmentation"
    )


def different_scales() -> str:
    """Say what the methods for losses of different scale gain on rescaled tables."""
    rescaled = recorded_board()["tables-rescaled"]
    assert all(verdict(rescaled.world, found.against_tuned) >= 0 for m in SCALE_METHODS if (found := rescaled.find(m)))
    gains = [found.against_sum.value for m in SCALE_METHODS if (found := rescaled.find(m)) and found.against_sum]
    low, high = (f"{value:.0f}" for value in (min(gains), max(gains)))
    count = len(rescaled.problems)
    text = f"+{low} to +{high} % on {count} tables with factors up to 1000, level with weights set by hand"
    return f"{text}; on QM9 {on_molecules()}"


def on_molecules() -> str:
    """Say by how much the same methods lower the errors on QM9."""
    molecules = recorded_board()["molecules"]
    found = [standing for method in SCALE_METHODS if (standing := molecules.find(method))]
    better = [s for s in found if verdict(molecules.world, s.against_sum) > 0]
    others = [s.method for s in found if s not in better]
    ordered = sorted(better, key=lambda s: s.against_sum.value if s.against_sum else 0.0)
    low, high = (without_interval(molecules.world, s.against_sum) for s in (ordered[0], ordered[-1]))
    gains = f"{low.replace('error', 'errors').removesuffix(' lower')} to {high.removeprefix('error ')}"
    if not others:
        return gains
    return f"{gains} with {join([s.method for s in better], 'and')}, not shown to be lower with {join(others, 'and')}"


def scale_and_gradients() -> str:
    """Compare CAGrad after BPGS and after First loss with BPGS where the losses have different scales."""
    methods = ("BPGS + CAGrad", "First loss + CAGrad", "BPGS")
    worlds = {"synthetic": "synthetic problems", "tables-rescaled": "these tables"}
    found = [f"on {text} {join([f'{m} {gain(key, m, interval=False)}' for m in methods], 'and')}"
             for key, text in worlds.items()]  # fmt: skip
    return (
        f"{'; '.join(found)}. Not run on NYUv2 and QM9; on QM9, First loss alone is not shown to be better than the sum"
    )


def unknown_scales() -> str:
    """Say where the methods for unknown cases are worse than the plain sum."""
    text = "neither is shown to be worse than the sum in any group of problems without a penalty"
    board = [standings for key, standings in recorded_board().items() if key != "penalties"]
    for method in unknown_case().methods:
        found = single_exceptions(board, method)
        many = f"{len(found)} single problems, including " if found[1:] else ""
        text += f"; {method} is worse on {many}{found[-1]}" if found else ""
    return text
