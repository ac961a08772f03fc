"""Tables of a comparison in a user's training function: ranks over seeds, and differences to a reference method."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..studies import Study
from .intervals import SEEDS_OF_AN_INTERVAL, mean_interval
from .ranks import PrintedTable, Ranking, rank
from .tables import format_number, format_seeds, higher_is_better

REFERENCE = "static"
"""The method that the others are compared with, if it was run; otherwise the first one."""
LISTED_SEEDS = 10  # more are only counted


def reference_method(study: Study) -> str:
    """Return the label of the method that the others are compared with."""
    plain = (label for label, recipe in study.methods.items() if recipe.name == REFERENCE and not recipe.options)
    return next(plain, next(iter(study.methods)))


def scores_by_seed(study: Study, frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a score with seeds as rows and methods as columns, NaN for runs that diverged."""
    shown = frame[frame["seed"].isin(study.seeds)]
    table = shown.pivot_table(index="seed", columns="method", values=metric, dropna=False)
    return table.reindex(columns=[method for method in study.methods if method in table.columns])


def without_incomplete(table: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of the methods that have one at every seed at which any method has one.

    The others diverged at some seeds, and would be compared at those that are easy for them.
    """
    return table.dropna(axis=0, how="all").dropna(axis=1)


def rankings(study: Study, frame: pd.DataFrame) -> list[Ranking]:
    """Return a ranking over seeds for each score, without methods that diverged at some of its seeds.

    A score has none with fewer than three methods or two seeds.
    """
    found = []
    for metric in study.metrics:
        table = without_incomplete(scores_by_seed(study, frame, metric))
        if _can_rank(table):
            found.append(rank(metric, table if higher_is_better(metric) else -table))
    return found


def _can_rank(table: pd.DataFrame) -> bool:
    return len(table) >= 2 and len(table.columns) >= 3


def differences(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean difference of each method to the reference at the same seeds, with its 95 % interval.

    There is no interval of one or two seeds.
    """
    reference, rows = reference_method(study), []
    for metric in study.metrics:
        table = scores_by_seed(study, frame, metric)
        for method in table.columns.drop(reference, errors="ignore"):
            paired = (table[method] - table[reference]).dropna().to_numpy(dtype=np.float64)
            mean = paired.mean() if len(paired) else np.nan
            low, high = mean_interval(paired) if len(paired) >= SEEDS_OF_AN_INTERVAL else (np.nan, np.nan)
            rows.append(
                {"metric": metric, "method": method, "seeds": len(paired), "mean": mean, "low": low, "high": high}
            )
    return pd.DataFrame(rows, columns=["metric", "method", "seeds", "mean", "low", "high"])


def printed_tables(study: Study, frame: pd.DataFrame) -> Iterator[PrintedTable]:
    """Yield tables of diverged runs, of average ranks, best method first, and of differences to the reference.

    A table without rows is left out.
    """
    yield from filter(lambda table: table.rows, (make(study, frame) for make in (_diverged, _ranks, _differences)))


def _diverged(study: Study, frame: pd.DataFrame) -> PrintedTable:
    """Return the seeds at which each method has no finite score, with a note on what it is left out of."""
    columns, notes = {}, []
    for metric in study.metrics:
        table = scores_by_seed(study, frame, metric)
        columns[metric] = {method: _format_diverged(values) for method, values in table.items()}
        complete = without_incomplete(table)
        left_out = [str(method) for method in table.columns if method not in complete]
        if left_out and _can_rank(complete):
            notes.append(f"{metric} is ranked without {', '.join(left_out)}")
        elif _can_rank(table) and not _can_rank(complete):
            notes.append(f"{metric} is not ranked, because fewer than three methods finished at the same seeds")
    if study.rate_seeds:
        choice = frame[frame["seed"].isin(study.rate_seeds)].groupby("method")["macro"].count()
        columns["choice of the rate"] = {
            method: "at every rate: the lowest is used" if count == 0 else "–" for method, count in choice.items()
        }
    methods = [m for m in study.methods if any(texts.get(m, "–") != "–" for texts in columns.values())]
    columns = {head: texts for head, texts in columns.items() if any(texts.get(m, "–") != "–" for m in methods)}
    rows = [[method, *(texts.get(method, "–") for texts in columns.values())] for method in methods]
    return PrintedTable(["method", *columns], rows, "Runs that diverged", "; ".join(notes))


def _format_diverged(values: pd.Series) -> str:
    seeds = [int(seed) for seed in values.index[values.isna()]]
    if len(seeds) > LISTED_SEEDS:
        return format_seeds(seeds)
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}" if seeds else "–"


def _ranks(study: Study, frame: pd.DataFrame) -> PrintedTable:
    found = rankings(study, frame)
    ranks = pd.DataFrame({ranking.part: ranking.ranks for ranking in found})
    means = ranks.mean(axis=1, skipna=False).sort_values(kind="stable")  # NaN, last: diverged for some scores
    heads = ["method", *ranks.columns] + (["mean"] if len(found) > 1 else [])
    rows = []
    for method, mean in means.items():
        numbers = [*ranks.loc[method], mean] if len(found) > 1 else list(ranks.loc[method])
        rows.append([str(method), *("–" if np.isnan(number) else f"{number:.2f}" for number in numbers)])
    note = "; ".join(f"{ranking.part}: Friedman p = {ranking.p:.2g}" for ranking in found)
    return PrintedTable(heads, rows, "Average rank over seeds", note)


def _differences(study: Study, frame: pd.DataFrame) -> PrintedTable:
    compared, count = differences(study, frame), len(study.seeds)
    texts: dict[str, dict[str, str]] = {}
    for row in compared.to_dict("records"):
        note = f" ({row['seeds']} of {count} seeds)" if 0 < row["seeds"] < count else ""
        texts.setdefault(row["method"], {})[row["metric"]] = (
            _format(row["mean"], row["low"], row["high"], study.decimals) + note
        )
    rows = [[method, *(cells[metric] for metric in study.metrics)] for method, cells in texts.items()]
    interval = " [95 % interval]" if count >= SEEDS_OF_AN_INTERVAL else ""
    seeds = f"{count} seeds{interval}" if count > 1 else "seed"
    return PrintedTable(
        ["method", *study.metrics], rows, f"Difference to {reference_method(study)} at the same {seeds}"
    )


def csv(study: Study, frame: pd.DataFrame) -> str:
    """Return a row per score and method: its average rank, and its difference to the reference."""
    ranks = {
        (ranking.part, method): value for ranking in rankings(study, frame) for method, value in ranking.ranks.items()
    }
    compared = differences(study, frame)
    compared["rank"] = [ranks.get(key, np.nan) for key in zip(compared["metric"], compared["method"], strict=True)]
    return str(compared.assign(reference=reference_method(study)).to_csv(index=False, float_format="%.6g"))


def _format(mean: float, low: float, high: float, decimals: int) -> str:
    mean_text, low_text, high_text = (format_number(value, decimals).replace("-", "−") for value in (mean, low, high))
    return mean_text if np.isnan(low) else f"{mean_text} [{low_text}, {high_text}]"
