"""Many methods on many data sets: average ranks, Friedman's test, Nemenyi's critical difference (Demšar 2006)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from ..studies import Study
from .tables import fitting, ruled

LEVEL = 0.05
RESAMPLES = 10_000


@dataclass(frozen=True)
class Ranking:
    """The methods of one table by their average rank over data sets; rank 1 is best."""

    part: str
    scores: pd.DataFrame  # a row for each data set, a column for each method
    ranks: pd.Series  # the average rank of each method, best first
    chi2: float  # Friedman's statistic over all methods
    p: float
    difference: float  # two average ranks that differ by less may be equal (Nemenyi, at 5 %)

    def cliques(self) -> list[tuple[str, str]]:
        """The first and the last method of each largest group without a critical difference."""
        names, values = list(self.ranks.index), self.ranks.to_numpy()
        found: list[tuple[int, int]] = []
        for i in range(len(names)):
            last = int(np.nonzero(values - values[i] < self.difference)[0].max())
            if last > i and (not found or last > found[-1][1]):
                found.append((i, last))
        return [(names[i], names[j]) for i, j in found]


def score_table(study: Study, frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """The mean macro score over folds: data sets down, methods across; only what is complete.

    A mean is complete if it has every fold of its data set that has a score at all, in whichever table: runs that
    diverged or are missing make unlike means, and the luckiest folds would win.
    """
    data = {condition.key: condition.head for condition in study.conditions}
    scored = frame.loc[frame["macro"].notna(), ["method", "condition", "seed", "macro"]]
    scored = scored.assign(data=scored["condition"].map(data))
    folds = scored.groupby("data")["seed"].nunique()
    keys = [condition.key for condition in study.parts()[part]]
    groups = scored[scored["condition"].isin(keys)].groupby(["data", "method"])["macro"]
    means, counts = groups.mean().unstack(), groups.count().unstack()
    table = means.where(counts.eq(folds, axis=0))
    sets = [data[key] for key in keys if data[key] in table.index]
    methods = [method for method in study.methods if method in table.columns]
    return table.loc[sets, methods].dropna(axis=1, how="all").dropna(axis=0)


def rankings(study: Study, frame: pd.DataFrame) -> list[Ranking]:
    """One for each table of the study that has at least three methods on two data sets."""
    found = []
    for part in study.parts():
        scores = score_table(study, frame, part) if len(frame) else pd.DataFrame()
        if scores.shape[0] >= 2 and scores.shape[1] >= 3:
            found.append(rank(part, scores))
    return found


def rank(part: str, scores: pd.DataFrame) -> Ranking:
    from scipy import stats

    sets, methods = scores.shape
    ranks = scores.rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    chi2, p = stats.friedmanchisquare(*(scores[method] for method in scores.columns))
    q = stats.studentized_range.ppf(1 - LEVEL, methods, np.inf) / np.sqrt(2)
    difference = q * np.sqrt(methods * (methods + 1) / (6 * sets))
    return Ranking(part, scores, ranks, float(chi2), float(p), float(difference))


def comparable(found: Sequence[Ranking]) -> bool:
    """Whether there are two tables that share data sets."""
    return len(found) == 2 and bool(set(found[0].scores.index) & set(found[1].scores.index))


def changes(first: Ranking, second: Ranking) -> pd.DataFrame:
    """From one table to the other: mean score and rank in both, and what the mean score loses with its 95 % interval.

    The interval is a bootstrap over data sets. Ranks are taken among the methods that both tables have.
    """
    methods = [m for m in first.scores.columns if m in second.scores.columns]
    sets = [name for name in first.scores.index if name in second.scores.index]
    before, after = first.scores.loc[sets, methods], second.scores.loc[sets, methods]
    lost = before - after
    low, high = _interval(lost.to_numpy())
    table = pd.DataFrame(
        {
            "score": before.mean(),
            "score_graded": after.mean(),
            "lost": lost.mean(),
            "low": low,
            "high": high,
            "sets_worse": (lost > 0.01).sum(),
            "rank": before.rank(axis=1, ascending=False).mean(),
            "rank_graded": after.rank(axis=1, ascending=False).mean(),
        },
        index=methods,
    )
    return table.sort_values("lost", kind="stable")


def _interval(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    count = len(values)
    chosen = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    low, high = np.percentile(values[chosen].mean(1), [2.5, 97.5], axis=0)
    return low, high


def summary(ranking: Ranking) -> str:
    sets, methods = ranking.scores.shape
    return (
        f"{methods} methods on {sets} data sets; Friedman χ² = {ranking.chi2:.1f}, p = {ranking.p:.2g}; "
        f"critical difference (Nemenyi, 5 %) = {ranking.difference:.2f}"
    )


@dataclass(frozen=True)
class Sheet:
    """A table as it is printed."""

    heads: list[str]
    rows: list[list[str]]
    title: str = ""
    note: str = ""  # what is said of it beside its title
    best: Sequence[Sequence[bool]] = ()  # the cells that stand out; none: no cell does

    def cells(self) -> Iterator[list[tuple[str, bool]]]:
        """Its rows, each cell with whether it stands out."""
        best = self.best or [[False] * len(self.heads)] * len(self.rows)
        for row, marks in zip(self.rows, best, strict=True):
            yield list(zip(row, marks, strict=True))


def sheets(found: Sequence[Ranking]) -> Iterator[Sheet]:
    """Average ranks, the scores on each data set, and what the second table costs against the first."""
    for ranking in found:
        means = ranking.scores.mean()
        rows = [[str(method), f"{value:.2f}", f"{means[method]:.3f}"] for method, value in ranking.ranks.items()]
        yield Sheet(["method", "average rank", "mean score"], rows, ranking.part, summary(ranking))
        rows = [[str(name), *(f"{value:.3f}" for value in row)] for name, row in ranking.scores.iterrows()]
        best = ranking.scores.eq(ranking.scores.max(axis=1), axis=0)
        yield Sheet(["data set", *ranking.scores.columns], rows, best=[[False, *row] for row in best.to_numpy()])
    if comparable(found):
        heads = ["method", "mean score", "graded", "lost [95 % interval]", "sets that lose > 0.01"]
        rows = []
        for method, row in changes(*found).iterrows():
            lost = f"{row.lost:.3f} [{row.low:.3f}, {row.high:.3f}]"
            ranks = [f"{row['rank']:.2f}", f"{row.rank_graded:.2f}"]
            rows.append(
                [str(method), f"{row.score:.3f}", f"{row.score_graded:.3f}", lost, f"{row.sets_worse:.0f}", *ranks]
            )
        yield Sheet([*heads, "rank", "rank, graded"], rows, "What graded factors cost")


def markdown(found: Sequence[Ranking]) -> str:
    blocks = []
    for sheet in sheets(found):
        if sheet.title:
            blocks.append(f"**{sheet.title}**{f': {sheet.note}' if sheet.note else ''}")
        lines = [f"| {' | '.join(sheet.heads)} |", "|" + " --- |" * len(sheet.heads)]
        for row in sheet.cells():
            lines.append(f"| {' | '.join(f'**{text}**' if best else text for text, best in row)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def terminal(found: Sequence[Ranking], width: int = 80) -> Iterator[Text | Table]:
    """The same no wider than `width`: a wide table as several."""
    for sheet in sheets(found):
        if sheet.title:
            yield Text.assemble((sheet.title, "bold"), f": {sheet.note}" if sheet.note else "")
        widths = [max(map(len, column)) for column in zip(sheet.heads, *sheet.rows, strict=True)]
        for part in fitting(widths[1:], width - widths[0]):
            table = ruled(sheet.heads[1:][part])
            for name, *rest in sheet.cells():
                table.add_row(Text(name[0]), *(Text(text, "bold" if best else "") for text, best in rest[part]))
            yield table


def csv(found: Sequence[Ranking]) -> str:
    """A row for each data set and method of each table."""
    parts = []
    for ranking in found:
        long = ranking.scores.rename_axis("data").reset_index().melt("data", var_name="method", value_name="score")
        ranks = ranking.scores.rank(axis=1, ascending=False)
        long["rank"] = [ranks.loc[d, m] for d, m in zip(long["data"], long["method"], strict=True)]
        parts.append(long.assign(part=ranking.part))
    return str(pd.concat(parts).round(6).to_csv(index=False))
