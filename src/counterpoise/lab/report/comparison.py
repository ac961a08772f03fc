"""Tables of a comparison in a user's training function: ranks over seeds, and differences to a reference method."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..studies import Study
from .intervals import mean_interval
from .ranks import PrintedTable, Ranking, rank
from .tables import format_number, higher_is_better

REFERENCE = "static"
"""The method that the others are compared with, if it was run; otherwise the first one."""


def reference_method(study: Study) -> str:
    """Return the label of the method that the others are compared with."""
    plain = (label for label, recipe in study.methods.items() if recipe.name == REFERENCE and not recipe.options)
    return next(plain, next(iter(study.methods)))


def scores_by_seed(study: Study, frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a score with seeds as rows and methods as columns, NaN for runs that diverged."""
    shown = frame[frame["seed"].isin(study.seeds)]
    table = shown.pivot_table(index="seed", columns="method", values=metric, dropna=False)
    return table.reindex(columns=[method for method in study.methods if method in table.columns])


def rankings(study: Study, frame: pd.DataFrame) -> list[Ranking]:
    """Return a ranking over seeds for each score, without methods that diverged at a seed.

    A score has none with fewer than three methods or two seeds.
    """
    found = []
    for metric in study.metrics:
        table = scores_by_seed(study, frame, metric).dropna(axis=1)
        if table.shape[0] >= 2 and table.shape[1] >= 3:
            found.append(rank(metric, table if higher_is_better(metric) else -table))
    return found


def differences(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean difference of each method to the reference at the same seeds, with its 95 % interval."""
    reference, rows = reference_method(study), []
    for metric in study.metrics:
        table = scores_by_seed(study, frame, metric)
        for method in table.columns.drop(reference, errors="ignore"):
            paired = (table[method] - table[reference]).dropna().to_numpy(dtype=np.float64)
            mean, low, high = (paired.mean(), *mean_interval(paired)) if len(paired) else (np.nan,) * 3
            rows.append(
                {"metric": metric, "method": method, "seeds": len(paired), "mean": mean, "low": low, "high": high}
            )
    return pd.DataFrame(rows, columns=["metric", "method", "seeds", "mean", "low", "high"])


def printed_tables(study: Study, frame: pd.DataFrame) -> Iterator[PrintedTable]:
    """Yield the table of average ranks, best method first, and that of differences to the reference."""
    found = rankings(study, frame)
    if found:
        ranks = pd.DataFrame({ranking.part: ranking.ranks for ranking in found})
        ranks = ranks.loc[ranks.mean(axis=1).sort_values(kind="stable").index]
        heads = ["method", *ranks.columns] + (["mean"] if len(found) > 1 else [])
        rows = []
        for method, values in ranks.iterrows():
            numbers = [*values, values.mean()] if len(found) > 1 else list(values)
            rows.append([str(method), *("–" if np.isnan(number) else f"{number:.2f}" for number in numbers)])
        note = "; ".join(f"{ranking.part}: Friedman p = {ranking.p:.2g}" for ranking in found)
        yield PrintedTable(heads, rows, "Average rank over seeds", note)
    compared = differences(study, frame)
    if len(compared):
        texts = {
            (row.method, row.metric): _format(row.mean, row.low, row.high, study.decimals)
            for row in compared.itertuples()
        }
        methods = list(dict.fromkeys(compared["method"]))
        rows = [[method, *(texts[method, metric] for metric in study.metrics)] for method in methods]
        title = f"Difference to {reference_method(study)} at the same seeds [95 % interval]"
        yield PrintedTable(["method", *study.metrics], rows, title)


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
    return f"{mean_text} [{low_text}, {high_text}]"
