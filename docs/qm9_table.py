"""Write the tables and the reading of qm9.md from the recorded runs. docs/figures.py draws its figure.

python docs/qm9_table.py
"""

import re
import textwrap
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from qm9_beside_published import WIDTH, beside_published, format_mean, ntkmtl_changes, ntkmtl_reading, published

from counterpoise.lab.data.qm9 import SINGLE_TASK_MAE, TARGETS, UNITS
from counterpoise.lab.report import collect_runs
from counterpoise.lab.report.leaderboard_text import join
from counterpoise.lab.report.ledger import Judgement, judge
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.report.run_scores import collect_histories, collect_scores
from counterpoise.lab.report.variants import report_variants
from counterpoise.lab.studies.base import BPGS_RAW_LABEL
from counterpoise.lab.studies.qm9 import (
    FEATURES,
    FURTHER,
    FURTHER_SEEDS,
    MAIN,
    PAPER,
    PARAMETERS,
    PUBLISHED,
    RAW,
    RERUN,
    SANITISED,
    SHORTER,
    STUDY,
    TOLERANCE,
)
from counterpoise.lab.studies.qm9_published import (
    AT_THE_FEATURES,
    CHANGE,
    ERRORS,
    NASH_MTL_AT_THE_FEATURES,
)

FOLDER = Path(__file__).parent
PAGE = FOLDER / "qm9.md"
ARCHIVE = FOLDER.parent / "results" / "molecules" / "qm9.jsonl.xz"
MARKERS = re.compile(r"(<!-- recorded -->\n).*?(<!-- /recorded -->)", re.DOTALL)
NOT_RECORDED = "No runs are recorded yet, so this page has no results."
TABLES = "[recorded tables](../results/molecules/tables/qm9.md)"
PAIRS = {
    ("Kendall (rate 0.001)", "Kendall"): (
        "The Δm of Kendall is {:.1f} % with the network's learning rate for its weights, and {:.1f} % with 0.025."
    ),
    ("BPGS (frozen θ)", "BPGS"): "That of BPGS is {:.1f} % with frozen θ, and {:.1f} % if θ is learned.",
    (BPGS_RAW_LABEL, "BPGS"): (
        "It is {:.1f} % with raw weights (`normalise=False`), and {:.1f} % with weights that sum to 1."
    ),
}
"""Two methods that differ in one point, and a sentence about their Δm."""
LEDGER = "[ledger](../results/molecules/ledger.md)"
HALF_RATE = 0.0005
"""Half of the learning rate at the start."""
CONDITIONS = {MAIN: "", FURTHER: "", FEATURES: "", PARAMETERS: ", on the shared parameters"}
"""Conditions with the set-up of the page, and what is added to the names of their methods."""
VARIATIONS = (RERUN, RAW, SANITISED)
"""Conditions that differ from the set-up in one point or two."""


class Recorded:
    """The recorded runs of the study.

    Args:
        archives: The archives of runs.
    """

    def __init__(self, *archives: Path) -> None:
        collected = collect_runs(archives)
        if collected.problems:
            raise ValueError(str(collected.problems))
        (variant,) = report_variants(collected)
        seeds, device = variant.seeds, variant.device
        every = collect_scores(STUDY, collected, seeds=seeds, device=device)
        histories = collect_histories(STUDY, collected, seeds=seeds, device=device)
        self.scores, self.histories = (frame[frame["seed"].isin(STUDY.seeds)] for frame in (every, histories))
        seeds_of_kendall = every["condition"].isin([MAIN, FURTHER_SEEDS]) & (every["method"] == "Kendall")
        self.kendall = every[seeds_of_kendall].set_index("seed").sort_index()[[CHANGE, "epochs"]]

    def main(self) -> dict[str, pd.DataFrame]:
        """Return the scores of each main method, the lowest mean Δm first."""
        return by_change(self.scores[self.scores["condition"] == MAIN])

    def one_seed(self) -> dict[str, pd.DataFrame]:
        """Return the scores of each method at the seed of the further methods. Empty if none of them was run."""
        scores = self.scores[self.scores["condition"].isin(CONDITIONS) & (self.scores["seed"] == STUDY.seeds[0])]
        return {} if (scores["condition"] == MAIN).all() else by_change(scores)


def by_change(scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the scores of each method, the lowest mean Δm first."""
    found = {
        f"{method}{CONDITIONS[condition]}": rows
        for (method, condition), rows in scores.groupby(["method", "condition"], sort=False)
    }
    return dict(sorted(found.items(), key=lambda item: float(item[1][CHANGE].mean())))


def mean_ranks(scores: pd.DataFrame) -> "pd.Series[float]":
    """Return the mean rank of each main method over properties and the seeds at which all of them were run."""
    here = scores[scores["condition"] == MAIN].set_index(["seed", "method"])[list(ERRORS)]
    return here.stack().unstack("method").dropna().rank(axis=1).mean()


def change_table(groups: dict[str, pd.DataFrame], ranks: "pd.Series[float]") -> str:
    """Return the table of Δm and mean ranks beside the published Δm."""
    rows = [
        [name, str(len(scores)), format_mean(scores[CHANGE], 1), published(name), f"{ranks[name]:.1f}"]
        for name, scores in groups.items()
    ]
    heads = ["method", "seeds", "Δm (%)", "published", "mean rank"]
    return markdown_table(heads, rows, right=range(1, len(heads)))


def one_seed_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return the table of Δm at one seed, in which the names of further methods are bold."""
    rows = []
    for name, scores in groups.items():
        row = scores.iloc[0]
        label = name if row["condition"] == MAIN else f"**{name}**"
        rows.append([label, f"{row[CHANGE]:.1f}", published(row["method"])])
    heads = ["method", "Δm (%)", "published"]
    return markdown_table(heads, rows, right=range(1, len(heads)))


def error_table(groups: dict[str, pd.DataFrame]) -> str:
    """Return the table of the mean absolute errors of each property, with the published ones."""
    heads = [f"{target} ({unit})" for target, unit in zip(TARGETS, UNITS, strict=True)]
    rows = [["single-task models, published", *(f"{error:.4g}" for error in SINGLE_TASK_MAE)]]
    for name, scores in groups.items():
        rows.append([name, *(f"{scores[error].mean():.4g}" for error in ERRORS)])
        if name in PUBLISHED:
            rows.append([f"{name}, published", *(f"{PAPER[error][name][MAIN][0]:.4g}" for error in ERRORS)])
    return markdown_table(["method", *heads], rows, right=range(1, len(heads) + 1))


def bpgs_reading(groups: dict[str, pd.DataFrame], ranks: "pd.Series[float]") -> str:
    """Say where BPGS stands among the main methods, and which properties decide that."""
    found = {name: scores for name, scores in groups.items() if name in ranks}
    places, by_rank = list(found), list(ranks.sort_values().index)
    means = pd.DataFrame({name: scores[list(ERRORS)].mean() for name, scores in found.items()}).set_axis(TARGETS)
    lowest, highest = (targets_of(means, extreme, "BPGS") for extreme in ("idxmin", "idxmax"))
    shares = 100 * (means["BPGS"] / list(SINGLE_TASK_MAE) - 1) / len(TARGETS)
    decisive, change = shares.idxmax(), shares.sum()
    first = places[0]
    at = "At a single seed, " if min(map(len, found.values())) == 1 else ""
    text = (
        f"{at}**BPGS** has place {places.index('BPGS') + 1} of {len(places)} by Δm, and place "
        f"{by_rank.index('BPGS') + 1} by mean rank over the properties ({ranks['BPGS']:.1f}). "
        f"{first}, the first by Δm, has a mean rank of {ranks[first]:.1f}. Of these methods, BPGS has the lowest "
        f"error of {lowest}, and the highest of {highest}. "
        f"Of its Δm of {change:.1f} %, {shares[decisive]:.1f} are due to {decisive} alone."
    )
    return textwrap.fill(text, WIDTH)


def seeds_reading(recorded: Recorded) -> str:
    """Say how the Δm of runs of the same method depends on how long their learning rate was high."""
    scores, histories = (
        frame[frame["condition"] == MAIN].set_index(["method", "seed"])
        for frame in (recorded.scores, recorded.histories)
    )
    ends = histories[histories["rate"] >= HALF_RATE]["epoch"].groupby(level=[0, 1]).max()
    signs, against = [], []
    for method, changes in scores[CHANGE].groupby(level=0):
        for a, b in combinations(changes.index, 2):
            signs.append(np.sign((ends[a] - ends[b]) * (changes[b] - changes[a])))
            against += [str(method)] if signs[-1] < 0 else []
    if not signs or "BPGS" not in scores.index:
        return ""
    later, same = signs.count(1), signs.count(0)
    exceptions = f" ({join([f'{method} {count}' for method, count in Counter(against).items()], 'and')})"
    seeds = [f"{change:.1f} % ({ends['BPGS', seed]})" for seed, change in scores.loc["BPGS", CHANGE].items()]
    text = (
        f"The seeds differ in when the plateau schedule lowers the learning rate. There are {len(signs)} pairs of "
        f"runs of the same method. In {later} of them, the run whose rate fell below {HALF_RATE} later has the lower "
        f"Δm, and in {len(against)} the higher one{exceptions if against else ''}; in {same}, both rates fell at the "
        f"same recorded epoch. This does not say which is the cause: a run that keeps improving also keeps its rate. "
        f"For BPGS, the Δm of the seeds and the last recorded epochs before the rate fell are {join(seeds, 'and')}."
    )
    return textwrap.fill(text, WIDTH)


def gradient_space_reading(recorded: Recorded) -> list[str]:
    """Say how the gradient-space methods were trained, and compare their Δm with the published ones."""
    scores, histories = (f[f["condition"] == FEATURES] for f in (recorded.scores, recorded.histories))
    if scores.empty:
        return []
    falling = histories[histories["rate"] > STUDY.schedule.lr_end]["epoch"].max()
    pairs = {row["method"]: (row[CHANGE], PUBLISHED[row["method"]][0]) for _, row in scores.iterrows()}
    by_side: dict[bool, list[str]] = {}
    for name, (ours, theirs) in sorted(pairs.items()):
        by_side.setdefault(ours < theirs, []).append(f"{name} ({ours:.1f} % instead of {theirs:.1f} %)")
    sides = [f"{'lower' if lower else 'higher'} for {join(names, 'and')}" for lower, names in by_side.items()]
    text = (
        f"The gradient-space methods ({join(sorted(pairs), 'and')}) compare gradients at the features. They were "
        f"trained for {SHORTER['epochs']} of {STUDY.schedule.epochs} epochs, because the time on the GPU was used up. "
        f"The last of their learning rates reached its minimum soon after epoch {falling:.0f}. The published runs "
        f"compare gradients on all shared parameters, except those of {join(AT_THE_FEATURES, 'and')}. Our Δm is "
        f"{', and '.join(sides)}."
    )
    if "Nash-MTL" in pairs:
        text += (
            f" At the features, the authors of Nash-MTL report {NASH_MTL_AT_THE_FEATURES['Nash-MTL']} %. We do not "
            f"know why ours is so much lower."
        )
    return [textwrap.fill(text, WIDTH)]


def further(recorded: Recorded) -> str:
    """Return the section about the further methods, with the main methods at the same seed."""
    groups = recorded.one_seed()
    if not groups:
        return ""
    seed = STUDY.seeds[0]
    text = (
        f"The further methods (bold) are recorded at seed {seed}. The main methods are shown at the same seed: their "
        f"Δm differ from the means over three seeds. The errors of each property are in the {TABLES}."
    )
    parts = [textwrap.fill(text, WIDTH), one_seed_table(groups), *pairs_reading(groups)]
    return "\n\n".join(["### Further methods at one seed", *parts, *gradient_space_reading(recorded)])


def pairs_reading(groups: dict[str, pd.DataFrame]) -> list[str]:
    """Compare methods that differ in one point at the same seed, if both were run."""
    changes = {name: float(scores[CHANGE].iloc[0]) for name, scores in groups.items()}
    sentences = [
        text.format(*(changes[name] for name in pair)) for pair, text in PAIRS.items() if changes.keys() >= {*pair}
    ]
    return [textwrap.fill(" ".join(sentences), WIDTH)] if sentences else []


def variations(recorded: Recorded) -> str:
    """Return the section about the conditions that differ from the set-up, which are run at one seed."""
    seed = STUDY.seeds[0]
    changes = recorded.scores[recorded.scores["seed"] == seed].pivot_table(CHANGE, "method", "condition")
    conditions = [condition for condition in VARIATIONS if condition in changes]
    if not conditions:
        return ""
    changes = changes.dropna(how="all", subset=conditions).sort_values(MAIN)
    rows = [[method, *(format_mean(pd.Series(row[key]).dropna(), 1) for key in (MAIN, *conditions))]
            for method, row in changes.iterrows()]  # fmt: skip
    heads = ["method", "set-up above", *conditions]
    if RERUN in conditions:
        heads += ["NTKMTL", "as reported by NTKMTL"]
        rows = [[*row, *ntkmtl_changes(row[0])] for row in rows]
    parts = [
        f"### Other set-ups at one seed\n\nΔm (%) at seed {seed}:",
        markdown_table(heads, rows, right=range(1, len(heads))),
        *(
            [
                ntkmtl_reading(changes[RERUN]),
                textwrap.fill(rerun_reading(recorded, changes[[MAIN, RERUN]].dropna()), WIDTH),
            ]
            if RERUN in conditions
            else []
        ),
    ]
    return "\n\n".join(parts)


def rerun_reading(recorded: Recorded, changes: pd.DataFrame) -> str:
    """Say how the set-up of NTKMTL changes Δm, the order of the methods, and the learning rate."""
    gains = (changes[MAIN] - changes[RERUN]).sort_values()
    lower = "The Δm of every method is lower there" if (gains > 0).all() else "The Δm changes there"
    same = list(changes[MAIN].sort_values().index) == list(changes[RERUN].sort_values().index)
    histories = recorded.histories[recorded.histories["seed"] == STUDY.seeds[0]]
    ends, last = {}, {}
    for condition in (MAIN, RERUN):
        here = histories[(histories["condition"] == condition) & histories["method"].isin(gains.index)]
        ends[condition] = here[here["rate"] >= HALF_RATE].groupby("method")["epoch"].max()
        last[condition] = here.groupby("method")["rate"].last()
    return (
        f"The set-up of NTKMTL has batches of 60 molecules, which doubles the number of steps, and a patience of ten "
        f"epochs. {lower}, by {gains.iloc[0]:.1f} ({gains.index[0]}) to {gains.iloc[-1]:.1f} points "
        f"({gains.index[-1]}), and the order of the methods is {'the same' if same else 'different'}. The learning "
        f"rate falls below {HALF_RATE} after {between(ends[RERUN])} epochs, compared with {between(ends[MAIN])} in the "
        f"set-up above, and ends at no more than {last[RERUN].max():.6f}, compared with {last[MAIN].max():.6f}."
    )


def between(values: "pd.Series[float]") -> str:
    """Return the range of some values, or the value if they are equal."""
    low, high = (f"{value:.3g}" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def targets_of(means: pd.DataFrame, extreme: str, method: str) -> str:
    """Return the properties of which a method has the lowest or the highest error."""
    return join([target for target, name in getattr(means, extreme)(axis=1).items() if name == method], "and") or "none"


def reading(scores: pd.DataFrame) -> str:
    """Return a sentence about each claim, or one about all of them if none can be judged yet."""
    judgements = [judgement for judgement in judge(STUDY, scores, STUDY.seeds) if is_plain(judgement)]
    if all(judgement.decisive.verdict == "not run" for judgement in judgements):
        return f"The verdicts of the {LEDGER} are provisional: not all {len(STUDY.seeds)} seeds are recorded yet."
    lines = [f"- {judgement.claim.text}: {describe(judgement)}." for judgement in judgements]
    text = (
        f"What the runs say about the claims of the {LEDGER}. A published Δm *holds* if ours is within "
        f"{100 * TOLERANCE:.0f} % of it. The difference of a comparison is positive if it supports the claim; its "
        f"interval is that of Student's t."
    )
    return "\n".join([textwrap.fill(text, WIDTH), "", *lines])


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
        return f"{found.verdict}, ours is {found.ours:.1f} %"
    return f"{found.verdict}, the difference is {found.ours:.1f} ({interval})".replace("-", "−")


def section(archive: Path = ARCHIVE) -> str:
    """Return the generated part of the page."""
    if not archive.is_file():
        return NOT_RECORDED
    recorded = Recorded(archive)
    groups, ranks = recorded.main(), mean_ranks(recorded.scores)
    return "\n\n".join(
        [
            "Δm of the test molecules at the epoch with the best validation:",
            change_table(groups, ranks),
            "Mean absolute errors, as means over the seeds:",
            error_table(groups),
            "![Δm of each method against the epoch, and its errors of each property](figures/qm9.svg)",
            bpgs_reading(groups, ranks),
            *filter(None, [seeds_reading(recorded)]),
            reading(recorded.scores),
            *beside_published(groups, recorded.kendall),
            *filter(None, [further(recorded), variations(recorded)]),
        ]
    )


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = section()
    PAGE.write_text(MARKERS.sub(lambda markers: f"{markers[1]}{found}\n{markers[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
