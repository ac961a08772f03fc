"""Tables of our scores beside the paper's, for the terminal, CSV and Markdown."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..data.qm9 import TARGETS as QM9_TARGETS
from ..data.qm9 import UNITS as QM9_UNITS
from ..studies import Condition, Study
from .markdown import markdown_table
from .run_scores import rank_by_score, select_seeds

AGREES = 0.0035  # VALUE_TOLERANCE plus the rounding of the paper's three digits
DECIMALS = 3  # that a table prints by default

METRIC_NAMES = {
    "macro": "macro score",
    "worst": "worst-task score",
    "reach": "largest |z|/τ at the end",
    "macro_f1": "macro-F1 ↑",
    "micro_f1": "micro-F1 ↑",
    "hamming": "Hamming accuracy ↑",
    "r2": "R² ↑",
    "rmse": "RMSE ↓",
    "mae": "MAE ↓",
    "miou": "mIoU ↑",
    "pixel_accuracy": "pixel accuracy ↑",
    "abs_rel": "abs rel ↓",
    "angle": "angle ↓",
    "angle_median": "median angle ↓",
    "within_11": "< 11.25° ↑",
    "within_22": "< 22.5° ↑",
    "within_30": "< 30° ↑",
    "total_loss": "total loss ↓",
    "delta_m": "Δ_M ↑",
    "delta_m_percent": "Δ_M of nine (%) ↓",
    "theta_max": "θ_max, final",
    "theta_max_first": "θ_max, epoch 0",
    "epoch_seconds": "s per epoch ↓",
    "total_seconds": "s in counted epochs ↓",
    "memory_mb": "memory (MB) ↓",
    "parameters": "parameters",
    "objective": "objective ↓",
    "error_share": "error, relative to a constant ↓",
    "rel_l2": "relative L2 error ↓",
    "rel_l2_last": "relative L2 error, last step ↓",
    "mse_e9": "mean squared error × 10⁹ ↓",
    "training_loss": "lowest training loss ↓",
    "mae_change": "Δm (%) ↓",
    "mae_change_validation": "Δm of the validation molecules (%) ↓",
    **{f"mae_{target}": f"{target} ({unit}) ↓" for target, unit in zip(QM9_TARGETS, QM9_UNITS, strict=True)},
}


@dataclass(frozen=True)
class Entry:
    """One cell: our mean and standard deviation over `count` seeds, and the paper's."""

    study: str
    part: str
    metric: str
    method: str
    condition: str
    head: str
    mean: float
    sd: float
    count: int
    paper_mean: float | None
    paper_sd: float | None
    rates: tuple[float, ...] = ()  # the learning rate in each column of the table, in studies that tune it
    tolerance: float = AGREES  # the largest difference that counts as agreement
    expected: int = 0  # the number of seeds of the table
    seeds: tuple[int, ...] = ()  # those of them that were run
    run: bool = False  # whether there are runs, which may have diverged
    decimals: int = DECIMALS
    comparison: bool = False  # whether it belongs to a comparison, which counts the seeds that did not diverge

    @property
    def row(self) -> str:
        rates = self.rates if len(set(self.rates)) > 1 else self.rates[:1]
        return f"{self.method} ({', '.join(f'{rate:g}' for rate in rates)})" if rates else self.method

    @property
    def difference(self) -> float | None:
        return None if self.paper_mean is None else self.mean - self.paper_mean

    @property
    def agrees(self) -> bool:
        return self.count == 0 or self.difference is None or abs(self.difference) <= self.tolerance

    def ours(self) -> str:
        if self.count == 0 or self.mean != self.mean:
            return "–"
        seeds = f"{self.count} of {self.expected} seeds" if self.comparison else format_seeds(self.seeds)
        note = f" ({seeds})" if self.count < self.expected else ""
        return format_mean_sd(self.mean, self.sd, self.decimals) + note

    def paper(self) -> str:
        return "" if self.paper_mean is None else format_mean_sd(self.paper_mean, self.paper_sd, self.decimals)


def rounding(decimals: int) -> float:
    """Return the largest rounding error of a number with these decimals."""
    return float(f"5e-{decimals + 1}")


def format_mean_sd(mean: float, sd: float | None, decimals: int = DECIMALS) -> str:
    """Format a mean with its standard deviation, if there is one."""
    spread = "" if sd is None or sd != sd else f" ± {sd:,.{printed_decimals(mean, decimals)}f}"
    return format_number(mean, decimals) + spread


def format_number(value: float, decimals: int = DECIMALS) -> str:
    digits = printed_decimals(value, decimals)
    return "–" if value != value else f"{round(value, digits) + 0.0:,.{digits}f}"


def printed_decimals(value: float, decimals: int = DECIMALS) -> int:
    """Return how many decimals a table prints: none for large numbers."""
    return 0 if abs(value) >= 1000 else decimals


def format_seeds(seeds: Sequence[int]) -> str:
    """Format seeds for a caption: "seed 42", "seeds 42–51", "40 seeds"."""
    ordered = sorted(set(seeds))
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"seeds {ordered[0]}–{ordered[-1]}"
    if len(ordered) > 4:
        return f"{len(ordered)} seeds"
    return f"seed{'s' if len(ordered) > 1 else ''} {', '.join(map(str, ordered))}"


def table_entries(study: Study, frame: pd.DataFrame, seeds: Sequence[int]) -> list[Entry]:
    """Return every cell of the study's tables at these seeds."""
    selected = select_seeds(frame, seeds)
    runs = dict(iter(selected.groupby(["method", "condition"], sort=False)))
    none = selected.iloc[:0]
    parts = study.conditions_by_part()
    rows = {part: _rows(study, frame, conditions, seeds) for part, conditions in parts.items()}
    found = []
    for metric in (*study.metrics, *study.further_metrics):
        for part, conditions in parts.items():
            for method, rates in rows[part].items():
                for condition in conditions:
                    if condition.only and method not in condition.only:
                        continue
                    here = runs.get((method, condition.key), none)
                    entry = _entry(study, part, metric, method, condition, here)
                    found.append(replace(entry, rates=rates, expected=len(seeds)))
    return found


def _rows(
    study: Study, frame: pd.DataFrame, conditions: Sequence[Condition], seeds: Sequence[int]
) -> dict[str, tuple[float, ...]]:
    """Return the methods of a table in order, with the learning rates that were chosen for each."""
    keys = [condition.key for condition in conditions]
    scores = frame[frame["condition"].isin(keys)]
    # Also of methods that were not run at these seeds.
    chosen = dict(scores.groupby(["method", "condition"])["lr"].first()) if study.rates else {}
    here = select_seeds(scores, seeds)
    methods = method_order(study, here)
    if set(seeds) & set(study.seeds):
        methods += method_order(study, scores)
    else:  # at further seeds and those of a search, only the methods that were run there
        run = set(here["method"])
        methods = [method for method in methods if method in run]
    return {method: tuple(chosen[method, key] for key in keys if (method, key) in chosen) for method in methods}


def _entry(study: Study, part: str, metric: str, method: str, condition: Condition, runs: pd.DataFrame) -> Entry:
    scores = runs[metric].to_numpy(dtype=np.float64)
    measured = ~np.isnan(scores)  # excludes runs that diverged or did not measure this
    values = scores[measured]
    paper = study.paper.get(metric, {}).get(method, {}).get(condition.key)
    paper_mean, paper_sd = paper or (None, None)
    # The metrics of such a table have different scales: agreement is within two of the paper's standard deviations.
    tolerance = 2 * paper[1] + rounding(study.decimals) if study.layout == "metrics" and paper else AGREES
    if paper and math.isnan(paper[1]):
        tolerance = math.inf
    return Entry(
        study.name,
        part,
        metric,
        method,
        condition.key,
        condition.head or condition.key,
        mean=float(values.mean()) if len(values) else float("nan"),
        sd=float(values.std(ddof=study.ddof)) if len(values) > 1 else float("nan"),
        count=len(values),
        paper_mean=paper_mean,
        paper_sd=paper_sd,
        tolerance=tolerance,
        seeds=tuple(sorted(map(int, runs["seed"].to_numpy()[measured]))),
        run=len(runs) > 0,
        decimals=study.decimals,
        comparison=study.layout == "comparison",
    )


def method_order(study: Study, frame: pd.DataFrame) -> list[str]:
    """Return the methods as the study lists them, or best first if each has its best of several rates."""
    if not study.rates:
        return list(study.methods)
    ranked = rank_by_score(frame[~frame["seed"].isin(study.rate_seeds)], "method").index
    return [str(method) for method in dict.fromkeys([*ranked, *rank_by_score(frame, "method").index])]


@dataclass(frozen=True)
class Grid:
    """A table: its metric or title, the part of the study, column heads, and the entries of each row."""

    title: str
    part: str
    heads: list[str]
    rows: dict[str, list[Entry]]
    seeds: tuple[int, ...] = ()  # if the whole table has the same seeds, fewer than expected
    row_kind: str = "method"


def table_grids(study: Study, cells: Sequence[Entry]) -> list[Grid]:
    """Arrange entries into tables: one per metric and part, or one per part with a column for each metric.

    A study of a single method has a row for each of its conditions.
    """
    single = len(study.methods) == 1 and study.layout != "comparison"
    by_metric = study.layout in ("metrics", "comparison") or single
    tables: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for entry in cells:
        further = "further metrics" if entry.metric in study.further_metrics else ""
        place = (further, entry.part) if by_metric else (entry.metric, entry.part)
        tables.setdefault(place, {}).setdefault(entry.head if single else entry.row, []).append(entry)
    grids: list[Grid] = []
    any_run = any(entry.count for entry in cells)
    for (metric, part), rows in tables.items():
        heads = [
            METRIC_NAMES.get(entry.metric, entry.metric) if by_metric else entry.head
            for entry in next(iter(rows.values()))
        ]
        run = [any(row[i].count for row in rows.values()) for i in range(len(heads))]
        if any(run):  # omit columns and rows that were not run
            heads = [head for head, here in zip(heads, run, strict=True) if here]
            rows = {m: [e for e, here in zip(row, run, strict=True) if here] for m, row in rows.items()}
            rows = {m: row for m, row in rows.items() if any(e.run or e.paper_mean is not None for e in row)}
        elif any_run or grids:  # omit tables that were not run, but keep at least one
            continue
        row_kind = "setting" if single else "method"
        grid = Grid(METRIC_NAMES.get(metric, metric), part, heads, rows, row_kind=row_kind)
        grids.append(grid if study.layout == "comparison" else _move_seeds(grid))
    return grids


def _move_seeds(grid: Grid) -> Grid:
    """Move a note on missing seeds from the cells to their row, or to the table, if all cells share it."""
    shared = _common_missing_seeds([entry for row in grid.rows.values() for entry in row])
    rows = {}
    for name, row in grid.rows.items():
        in_row = _common_missing_seeds(row)
        label = f"{name} ({format_seeds(in_row)})" if in_row and not shared else name
        rows[label] = [replace(entry, expected=entry.count) for entry in row] if in_row else row
    return replace(grid, rows=rows, seeds=shared)


def _common_missing_seeds(cells: Sequence[Entry]) -> tuple[int, ...]:
    """Return the seeds of all cells that were run, if they are the same and fewer than expected; otherwise ()."""
    run = [entry for entry in cells if entry.count]
    same = len({entry.seeds for entry in run}) == 1 and any(entry.count < entry.expected for entry in run)
    return run[0].seeds if same else ()


Highlight = Literal["", "best", "second"]


def mark_best(grid: Grid, *, paper: bool = False) -> dict[str, list[Highlight]]:
    """Mark the best and the second-best cell of each column, comparing the printed digits.

    Columns without a direction have no marks. A second-best is marked only among three or more. Settings of one method
    are not compared. In a comparison, a mean without a seed at which another method has a score has no mark.
    """
    marks: dict[str, list[Highlight]] = {row: [""] * len(grid.heads) for row in grid.rows}
    if grid.row_kind != "method":
        return marks
    for column in range(len(grid.heads)):
        cells = {row: entries[column] for row, entries in grid.rows.items()}
        covered = {seed for entry in cells.values() for seed in entry.seeds}
        complete = {row: e for row, e in cells.items() if not e.comparison or set(e.seeds) == covered}
        values = {row: _printed_value(entry, paper) for row, entry in complete.items()}
        known = [value for value in values.values() if value is not None]
        descending = higher_is_better(next(iter(grid.rows.values()))[column].metric)
        if descending is None or len(known) < 2:
            continue
        order = sorted(set(known), reverse=descending)
        for row, value in values.items():
            if value == order[0]:
                marks[row][column] = "best"
            elif len(order) > 1 and value == order[1] and len(known) > 2:
                marks[row][column] = "second"
    return marks


def higher_is_better(metric: str) -> bool | None:
    """Return whether a larger value is better; None if the metric has no direction."""
    name = METRIC_NAMES.get(metric, metric)
    return True if "↑" in name or metric in ("macro", "worst") else False if "↓" in name else None


def _printed_value(entry: Entry, paper: bool) -> float | None:
    value = entry.paper_mean if paper else entry.mean if entry.count else None
    return None if value is None or value != value else round(value, printed_decimals(value, entry.decimals))


def caption(study: Study, grid: Grid, seeds: Sequence[int]) -> str:
    by_column = any(len(set(row[0].rates)) > 1 for row in grid.rows.values())
    kind = f"best learning rate{' of each column' if by_column else ''}"
    if study.layout == "comparison":  # no rate is the best if all diverged
        kind = "learning rate in parentheses"
    rate = f" ({kind})" if study.rates else ""
    title = f": {grid.title}" if grid.title else ""
    return f"{study.title}{f', {grid.part}' if grid.part else ''}{rate}{title}, {format_seeds(grid.seeds or seeds)}"


def terminal(study: Study, cells: Sequence[Entry], seeds: Sequence[int], width: int = 80) -> list[Table]:
    """Return Rich tables no wider than `width`. The paper's number is below ours, in red where they differ."""
    tables = []
    for grid in (part for whole in table_grids(study, cells) for part in _split_to_width(whole, width)):
        table = terminal_table(grid.heads, caption(study, grid, seeds))
        for method, row in grid.rows.items():
            table.add_row(Text(method), *(_terminal_cell(entry) for entry in row))
        tables.append(table)
    return tables


def terminal_table(heads: Sequence[str], title: str | None = None) -> Table:
    """Return an empty Rich table with a column for names and one for each head."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.show_edge = False
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _split_to_width(grid: Grid, width: int) -> Iterator[Grid]:
    """Split a wide table into several that fit."""
    columns = [
        [head, *(text for row in grid.rows.values() for text in (row[i].ours(), row[i].paper()))]
        for i, head in enumerate(grid.heads)
    ]
    widths = [max(map(len, texts)) for texts in columns]
    for part in split_columns(widths, width - max(map(len, grid.rows), default=0)):
        yield replace(grid, heads=grid.heads[part], rows={m: row[part] for m, row in grid.rows.items()})


def split_columns(widths: Sequence[int], available: int) -> Iterator[slice]:
    """Split columns into consecutive slices whose total width fits; a column that is too wide gets its own slice."""
    start = 0
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and sum(w + 2 for w in widths[start : stop + 1]) < available:  # 2: the gap
            stop += 1
        yield slice(start, stop)
        start = stop


def _terminal_cell(entry: Entry) -> Text:
    text = Text(entry.ours())
    if entry.paper_mean is not None:
        text.append(f"\n{entry.paper()}", style="dim" if entry.agrees else "red")
    return text


def csv(cells: Sequence[Entry]) -> str:
    frame = pd.DataFrame([vars(entry) | {"difference": entry.difference} for entry in cells])
    hidden = ["head", "tolerance", "expected", "seeds", "decimals", "comparison"]
    return str(frame.drop(columns=hidden).round(6).to_csv(index=False))


def markdown(study: Study, cells: Sequence[Entry], seeds: Sequence[int]) -> str:
    blocks = []
    emphasis: dict[Highlight, str] = {"": "{}", "best": "**{}**", "second": "<ins>{}</ins>"}
    for grid in table_grids(study, cells):
        has_paper = any(entry.paper() for row in grid.rows.values() for entry in row)
        note = " (published values in parentheses)" if has_paper else ""
        marks, rows = mark_best(grid), []
        for method, row in grid.rows.items():
            ours = (emphasis[mark].format(entry.ours()) for mark, entry in zip(marks[method], row, strict=True))
            texts = [f"{text}{f' ({e.paper()})' if e.paper() else ''}" for text, e in zip(ours, row, strict=True)]
            rows.append([method, *texts])
        blocks.append(
            f"**{caption(study, grid, seeds)}**{note}\n\n{markdown_table([grid.row_kind, *grid.heads], rows)}"
        )
    return "\n\n".join(blocks) + "\n"
