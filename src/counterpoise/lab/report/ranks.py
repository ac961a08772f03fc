"""Compare many methods on many data sets: average ranks, Friedman test, Nemenyi critical difference (Demšar 2006)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from ..studies import Study
from .intervals import mean_interval
from .markdown import markdown_table
from .tables import split_columns, terminal_table

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Ranking:
    """The methods of one table, ordered by their average rank over data sets; rank 1 is best."""

    part: str
    scores: pd.DataFrame  # a row per data set, a column per method
    ranks: pd.Series  # the average rank of each method, best first
    chi2: float  # Friedman's statistic over all methods
    p: float
    difference: float  # the critical difference of two average ranks (Nemenyi, 5 %)

    def cliques(self) -> list[tuple[str, str]]:
        """Return the first and the last method of each maximal group without a critical difference."""
        names, values = list(self.ranks.index), self.ranks.to_numpy()
        found: list[tuple[int, int]] = []
        for i in range(len(names)):
            last = int(np.nonzero(values - values[i] < self.difference)[0].max())
            if last > i and (not found or last > found[-1][1]):
                found.append((i, last))
        return [(names[i], names[j]) for i, j in found]


def score_table(study: Study, frame: pd.DataFrame, part: str) -> pd.DataFrame:
    """Return the mean macro score over folds, with data sets as rows and methods as columns, without incomplete means.

    A mean is complete if it covers every fold for which any method in any table of the study has a score. Otherwise a
    method that diverged on hard folds would be compared on its easy ones.
    """
    data = {condition.key: condition.head for condition in study.conditions}
    scored = frame.loc[frame["macro"].notna(), ["method", "condition", "seed", "macro"]]
    scored = scored.assign(data=scored["condition"].map(data))
    folds = scored.groupby("data")["seed"].nunique()
    keys = [condition.key for condition in study.conditions_by_part()[part]]
    groups = scored[scored["condition"].isin(keys)].groupby(["data", "method"])["macro"]
    means, counts = groups.mean().unstack(), groups.count().unstack()
    table = means.where(counts.eq(folds, axis=0))
    sets = [data[key] for key in keys if data[key] in table.index]
    methods = [method for method in study.methods if method in table.columns]
    return table.loc[sets, methods].dropna(axis=1, how="all").dropna(axis=0)


def rankings(study: Study, frame: pd.DataFrame) -> list[Ranking]:
    """Return a ranking for each table of the study that has at least three methods and two data sets."""
    found = []
    for part in study.conditions_by_part():
        scores = score_table(study, frame, part) if len(frame) else pd.DataFrame()
        if scores.shape[0] >= 2 and scores.shape[1] >= 3:
            found.append(rank(part, scores))
    return found


@cache
def critical_value(methods: int) -> float:
    """Return the quantile of the range of `methods` standard normal variables that the Nemenyi test uses.

    This is the studentized range with infinite degrees of freedom. The distribution of scipy.stats takes half a second,
    and importing it another.
    """
    from scipy.special import ndtr

    z, step = np.linspace(-8, 8, 1601, retstep=True)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    low, high = 0.0, 16.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        probability = methods * step * (density * (ndtr(z) - ndtr(z - middle)) ** (methods - 1)).sum()
        low, high = (middle, high) if probability < 1 - SIGNIFICANCE else (low, middle)
    return high


def friedman_test(ranks: np.ndarray) -> tuple[float, float]:
    """Return Friedman's statistic and its p-value, corrected for ties.

    Args:
        ranks: The rank of each method (columns) on each data set (rows).
    """
    from scipy.special import chdtrc

    sets, methods = ranks.shape
    between = sets * np.square(ranks.mean(0) - (methods + 1) / 2).sum()
    within = np.square(ranks - (methods + 1) / 2).sum() / (sets * (methods - 1))
    chi2 = between / within if within else 0.0  # all scores are equal
    return float(chi2), float(chdtrc(methods - 1, chi2))


def rank(part: str, scores: pd.DataFrame) -> Ranking:
    sets, methods = scores.shape
    ranks = scores.rank(axis=1, ascending=False)
    chi2, p = friedman_test(ranks.to_numpy())
    difference = critical_value(methods) / np.sqrt(2) * np.sqrt(methods * (methods + 1) / (6 * sets))
    return Ranking(part, scores, ranks.mean().sort_values(kind="stable"), chi2, p, float(difference))


def comparable(rankings: Sequence[Ranking]) -> bool:
    """Return whether there are two tables that share data sets."""
    return len(rankings) == 2 and bool(set(rankings[0].scores.index) & set(rankings[1].scores.index))


def changes(first: Ranking, second: Ranking) -> pd.DataFrame:
    """Compare two tables: mean scores, ranks among shared methods, and the loss of score with its 95 % interval.

    The interval is a percentile bootstrap over data sets.
    """
    methods = [m for m in first.scores.columns if m in second.scores.columns]
    sets = [name for name in first.scores.index if name in second.scores.index]
    before, after = first.scores.loc[sets, methods], second.scores.loc[sets, methods]
    lost = before - after
    intervals = [mean_interval(lost[method].to_numpy()) for method in methods]
    table = pd.DataFrame(
        {
            "score": before.mean(),
            "score_graded": after.mean(),
            "lost": lost.mean(),
            "low": [low for low, _ in intervals],
            "high": [high for _, high in intervals],
            "sets_worse": (lost > 0.01).sum(),
            "rank": before.rank(axis=1, ascending=False).mean(),
            "rank_graded": after.rank(axis=1, ascending=False).mean(),
        },
        index=methods,
    )
    return table.sort_values("lost", kind="stable")


def summary(ranking: Ranking) -> str:
    sets, methods = ranking.scores.shape
    return (
        f"{methods} methods on {sets} data sets; Friedman χ² = {ranking.chi2:.1f}, p = {ranking.p:.2g}; "
        f"critical difference (Nemenyi, 5 %) = {ranking.difference:.2f}"
    )


@dataclass(frozen=True)
class PrintedTable:
    """A table of texts."""

    heads: list[str]
    rows: list[list[str]]
    title: str = ""
    note: str = ""  # printed after the title
    highlighted: Sequence[Sequence[bool]] = ()  # which cells are bold; empty: none

    def cells(self) -> Iterator[list[tuple[str, bool]]]:
        """Yield the rows, each cell with whether it is bold."""
        highlighted = self.highlighted or [[False] * len(self.heads)] * len(self.rows)
        for row, marks in zip(self.rows, highlighted, strict=True):
            yield list(zip(row, marks, strict=True))


def printed_tables(rankings: Sequence[Ranking]) -> Iterator[PrintedTable]:
    """Yield tables of average ranks, of scores on each data set, and of losses from the first to the second ranking."""
    for ranking in rankings:
        means = ranking.scores.mean()
        rows = [[str(method), f"{value:.2f}", f"{means[method]:.3f}"] for method, value in ranking.ranks.items()]
        yield PrintedTable(["method", "average rank", "mean score"], rows, ranking.part, summary(ranking))
        rows = [[str(name), *(f"{value:.3f}" for value in row)] for name, row in ranking.scores.iterrows()]
        best = ranking.scores.eq(ranking.scores.max(axis=1), axis=0)
        bold = [[False, *row] for row in best.to_numpy()]
        yield PrintedTable(["data set", *ranking.scores.columns], rows, highlighted=bold)
    if comparable(rankings):
        heads = ["method", "mean score", "graded", "lost [95 % interval]", "sets that lose > 0.01"]
        rows = []
        for method, row in changes(*rankings).iterrows():
            lost = f"{row.lost:.3f} [{row.low:.3f}, {row.high:.3f}]"
            ranks = [f"{row['rank']:.2f}", f"{row.rank_graded:.2f}"]
            rows.append(
                [str(method), f"{row.score:.3f}", f"{row.score_graded:.3f}", lost, f"{row.sets_worse:.0f}", *ranks]
            )
        yield PrintedTable([*heads, "rank", "rank, graded"], rows, "Loss of score under graded factors")


def markdown(tables: Iterable[PrintedTable]) -> str:
    blocks = []
    for printed in tables:
        if printed.title:
            blocks.append(f"**{printed.title}**{f': {printed.note}' if printed.note else ''}")
        rows = [[f"**{text}**" if bold else text for text, bold in row] for row in printed.cells()]
        blocks.append(markdown_table(printed.heads, rows))
    return "\n\n".join(blocks) + "\n"


def terminal(tables: Iterable[PrintedTable], width: int = 80) -> Iterator[Text | Table]:
    """Yield Rich tables no wider than `width`; a wide table is split into several."""
    for printed in tables:
        if printed.title:
            yield Text.assemble((printed.title, "bold"), f": {printed.note}" if printed.note else "")
        widths = [max(map(len, column)) for column in zip(printed.heads, *printed.rows, strict=True)]
        for part in split_columns(widths[1:], width - widths[0]):
            table = terminal_table(printed.heads[1:][part])
            for name, *rest in printed.cells():
                table.add_row(Text(name[0]), *(Text(text, "bold" if bold else "") for text, bold in rest[part]))
            yield table


def csv(rankings: Sequence[Ranking]) -> str:
    """Return a row per table, data set and method."""
    parts = []
    for ranking in rankings:
        long = ranking.scores.rename_axis("data").reset_index().melt("data", var_name="method", value_name="score")
        ranks = ranking.scores.rank(axis=1, ascending=False)
        long["rank"] = [ranks.loc[d, m] for d, m in zip(long["data"], long["method"], strict=True)]
        parts.append(long.assign(part=ranking.part))
    return str(pd.concat(parts).round(6).to_csv(index=False))
