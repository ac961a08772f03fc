"""Write the tables, the curves and the reading of qm9.md from the recorded runs.

python docs/qm9_table.py
"""

import re
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from figures import STYLE, compact
from matplotlib.figure import Figure

from counterpoise.lab.data.qm9 import SINGLE_TASK_MAE, TARGETS, UNITS
from counterpoise.lab.report import collect_runs
from counterpoise.lab.report.ledger import Judgement, judge
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.report.run_scores import collect_histories, collect_scores
from counterpoise.lab.report.variants import report_variants
from counterpoise.lab.studies.qm9 import CHANGE, FURTHER, MAIN, MAIN_METHODS, PARAMETERS, PUBLISHED, STUDY

FOLDER = Path(__file__).parent
PAGE, CURVES = FOLDER / "qm9.md", FOLDER / "images" / "qm9-curves.svg"
ARCHIVE = FOLDER.parent / "results" / "molecules" / "qm9.jsonl.xz"
MARKERS = re.compile(r"(<!-- recorded -->\n).*?(<!-- /recorded -->)", re.DOTALL)
NOT_RECORDED = "No runs are recorded yet, so this page has no results."
RERUN = {
    "Sum": 179.8, "SI": 39.7, "RLW": 222.6, "DWA": 173.0, "Kendall": 58.4, "PCGrad": 118.6, "CAGrad": 102.4,
    "Nash-MTL": 72.9, "FAMO": 38.9, "FairGrad": 57.0,
}  # fmt: skip
"""Δm in % of the same methods in NTKMTL, with batches of 60 molecules and a patience of 10 epochs."""
CONDITIONS = {MAIN: "", FURTHER: "", PARAMETERS: ", on the shared parameters"}
"""Conditions of the tables, and what is added to the names of their methods."""


class Recorded:
    """The recorded runs of the study.

    Args:
        archive: The archive of runs.
    """

    def __init__(self, archive: Path) -> None:
        collected = collect_runs([archive])
        if collected.problems:
            raise ValueError(f"{archive}: {collected.problems}")
        (variant,) = report_variants(collected)
        seeds, device = variant.seeds, variant.device
        self.scores = collect_scores(STUDY, collected, seeds=seeds, device=device)
        self.histories = collect_histories(STUDY, collected, seeds=seeds, device=device)

    def groups(self) -> dict[str, pd.DataFrame]:
        """Return the scores of each method, the lowest mean Δm first."""
        found = {
            f"{method}{CONDITIONS[condition]}": rows
            for (method, condition), rows in self.scores.groupby(["method", "condition"], sort=False)
            if condition in CONDITIONS
        }
        return dict(sorted(found.items(), key=lambda item: float(item[1][CHANGE].mean())))


def change_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return the table of Δm beside the published values."""
    rows = []
    for name, scores in groups.items():
        method = scores["method"].iloc[0]
        published = [f"{values[method]:.1f}" if method in values else "–" for values in (PUBLISHED, RERUN)]
        rows.append([name, str(len(scores)), format_mean(scores[CHANGE], 1), *published])
    return markdown_table(["method", "seeds", "Δm (%)", "published", "re-run by NTKMTL"], rows, right=range(1, 5))


def error_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return the table of the mean absolute errors of each property, with those of single-task models."""
    heads = [f"{target} ({unit})" for target, unit in zip(TARGETS, UNITS, strict=True)]
    rows = [["single-task models, published", *(f"{error:.4g}" for error in SINGLE_TASK_MAE)]]
    for name, scores in groups.items():
        rows.append([name, *(f"{scores[f'mae_{target}'].mean():.4g}" for target in TARGETS)])
    return markdown_table(["method", *heads], rows, right=range(1, len(heads) + 1))


def format_mean(values: pd.Series, decimals: int) -> str:
    """Return the mean, with the standard deviation of two or more values."""
    mean = f"{values.mean():.{decimals}f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std():.{decimals}f}"


def reading(scores: pd.DataFrame) -> str:
    """Return a sentence about each claim: whether it holds at the seeds of the study."""
    judgements = judge(STUDY, scores, STUDY.seeds)
    lines = [f"- {judgement.claim.text}: {describe(judgement)}." for judgement in judgements if is_plain(judgement)]
    return "\n".join(lines)


def is_plain(judgement: Judgement) -> bool:
    """Return whether a claim is read for BPGS as released, where it has several readings."""
    return judgement.reading in ("", "BPGS")


def describe(judgement: Judgement) -> str:
    """Return the verdict of a claim, with the number that decides it."""
    found = judgement.decisive
    if found.verdict == "not run":
        return "not run at all three seeds"
    interval = f"95 % interval {found.low:.1f} to {found.high:.1f}"
    if judgement.claim.text.startswith(tuple(f"{method}: " for method in PUBLISHED)):
        return f"{found.verdict}, ours is {found.ours:.1f} % ({interval})"
    return f"{found.verdict}, the difference is {found.ours:.1f} ({interval})"


def draw_curves(histories: pd.DataFrame, path: Path) -> None:
    """Draw Δm of the validation molecules against epochs, as the mean over seeds."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axis = figure.subplots()
    shown = histories[histories["condition"] == MAIN]
    for method in (name for name in MAIN_METHODS if name in set(shown["method"])):
        means = shown[shown["method"] == method].groupby("epoch")[CHANGE].mean()
        axis.plot(means.index, means, linewidth=1.4, label=method)
    axis.set(xlabel="epoch", ylabel="Δm of the validation molecules, %", yscale="log")
    axis.legend(loc="upper right", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    path.write_text(compact(path.read_text(encoding="utf-8")), encoding="utf-8")


def section(archive: Path = ARCHIVE, curves: Path = CURVES) -> str:
    """Return the generated part of the page, and draw the curves."""
    if not archive.is_file():
        return NOT_RECORDED
    recorded = Recorded(archive)
    groups = recorded.groups()
    with mpl.rc_context(STYLE):
        draw_curves(recorded.histories, curves)
    return "\n\n".join(
        [
            "Δm of the test molecules at the epoch with the best validation:",
            change_table(groups),
            "Mean absolute errors, as means over the seeds:",
            error_table(groups),
            f"![Δm of the validation molecules against epochs](images/{curves.name})",
            "What the runs say about the claims of the [ledger](../results/molecules/ledger.md):",
            reading(recorded.scores),
        ]
    )


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = section()
    PAGE.write_text(MARKERS.sub(lambda markers: f"{markers[1]}{found}\n{markers[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
