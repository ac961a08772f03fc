"""Tables: ours beside the paper's, for the terminal, CSV and Markdown."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..studies import Study
from .results import at, by_score

AGREES = 0.0035  # a difference that rounding to three digits can make of VALUE_TOLERANCE
ROUNDING = 5e-4  # the paper prints three digits

NAMES = {
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
}


@dataclass(frozen=True)
class Entry:
    """One cell: our mean and deviation over `count` seeds, and the paper's."""

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
    rate: float | None = None  # the learning rate, where the method has its best of several
    tolerance: float = AGREES  # up to which difference they agree
    asked: int = 0  # how many seeds the table is about
    seeds: tuple[int, ...] = ()  # which of them are here

    @property
    def row(self) -> str:
        return self.method if self.rate is None else f"{self.method} ({self.rate:g})"

    @property
    def difference(self) -> float | None:
        return None if self.paper_mean is None else self.mean - self.paper_mean

    @property
    def agrees(self) -> bool:
        return self.count == 0 or self.difference is None or abs(self.difference) <= self.tolerance

    def ours(self) -> str:
        if self.count == 0 or self.mean != self.mean:
            return "–"
        return spread(self.mean, self.sd) + (f" ({spoken(self.seeds)})" if self.count < self.asked else "")

    def paper(self) -> str:
        return "" if self.paper_mean is None else spread(self.paper_mean, self.paper_sd)


def spread(mean: float, sd: float | None) -> str:
    """A mean with its deviation, where there is one; large numbers without a fraction."""
    places = digits(mean)
    return number(mean) + ("" if sd is None or sd != sd else f" ± {sd:,.{places}f}")


def number(value: float) -> str:
    return "–" if value != value else f"{round(value, digits(value)) + 0.0:,.{digits(value)}f}"


def digits(value: float) -> int:
    return 0 if abs(value) >= 1000 else 3


def entries(study: Study, frame: pd.DataFrame, seeds: Sequence[int]) -> list[Entry]:
    """Every cell of the study's tables at these seeds."""
    chosen = at(frame, seeds)
    runs = dict(iter(chosen.groupby(["method", "condition"], sort=False)))
    none, found = chosen.iloc[:0], []
    rates = dict(frame.groupby("method")["lr"].first()) if study.rates else {}  # a method has one, run here or not
    for metric in (*study.metrics, *study.further):
        for part, conditions in study.parts().items():
            for method in ranked(study, frame):
                for condition in conditions:
                    if condition.only and method not in condition.only:
                        continue
                    here = runs.get((method, condition.key), none)
                    here = here[here[metric].notna()]  # a run that diverged, or that did not measure this, has none
                    values = here[metric]
                    said = study.paper.get(metric, {}).get(method, {}).get(condition.key)
                    paper_mean, paper_sd = said or (None, None)
                    sd = float(values.std(ddof=study.ddof)) if len(values) > 1 else float("nan")
                    mean = float(values.mean()) if len(values) else float("nan")
                    place = (study.name, part, metric, method, condition.key, condition.head or condition.key)
                    # A table of many metrics has no common digit: it agrees within two of the paper's deviations.
                    # Where the paper gives none, any does.
                    near = 2 * said[1] + ROUNDING if study.layout == "metrics" and said else AGREES
                    near = math.inf if said and math.isnan(said[1]) else near
                    rate = rates.get(method)
                    of = len(seeds), tuple(sorted(map(int, here["seed"])))
                    found.append(Entry(*place, mean, sd, len(values), paper_mean, paper_sd, rate, near, *of))
    return found


def ranked(study: Study, frame: pd.DataFrame) -> list[str]:
    """The methods as the study lists them; where each has its best of several rates, the best method first."""
    if not study.rates:
        return list(study.methods)
    return [str(method) for method in by_score(frame, "method").index]


@dataclass(frozen=True)
class Grid:
    """A table: what stands in it, its heads, and the row of each method. `seeds`: if all of it is of fewer seeds."""

    what: str
    part: str
    heads: list[str]
    rows: dict[str, list[Entry]]
    seeds: tuple[int, ...] = ()
    side: str = "method"  # what a row is


def grids(study: Study, cells: Sequence[Entry]) -> list[Grid]:
    """The entries as tables: one for each metric and part, or one for each part with a column for each metric.

    A study of a single method has a row for each of its conditions.
    """
    single = len(study.methods) == 1
    by_metric = study.layout == "metrics" or single
    tables: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for entry in cells:
        further = "further metrics" if entry.metric in study.further else ""
        place = (further, entry.part) if by_metric else (entry.metric, entry.part)
        tables.setdefault(place, {}).setdefault(entry.head if single else entry.row, []).append(entry)
    found: list[Grid] = []
    for (metric, part), rows in tables.items():
        heads = [NAMES[entry.metric] if by_metric else entry.head for entry in next(iter(rows.values()))]
        run = [any(row[i].count for row in rows.values()) for i in range(len(heads))]
        if any(run):  # columns that were not run are left out
            heads = [head for head, here in zip(heads, run, strict=True) if here]
            rows = {m: [e for e, here in zip(row, run, strict=True) if here] for m, row in rows.items()}
        elif found:  # and so are tables, but one is shown
            continue
        side = "setting" if single else "method"
        found.append(_said_once(Grid(NAMES.get(metric, metric), part, heads, rows, side=side)))
    return found


def _said_once(grid: Grid) -> Grid:
    """Which seeds there are, where they are fewer than asked for: once for the table or for a row, if it can be."""
    same = _fewer([entry for row in grid.rows.values() for entry in row])
    rows = {}
    for name, row in grid.rows.items():
        fewer = _fewer(row)
        label = f"{name} ({spoken(fewer)})" if fewer and not same else name
        rows[label] = [replace(entry, asked=entry.count) for entry in row] if fewer else row
    return replace(grid, rows=rows, seeds=same)


def _fewer(cells: Sequence[Entry]) -> tuple[int, ...]:
    """The seeds behind all of these that were run, if they are the same and fewer than asked for; or none."""
    run = [entry for entry in cells if entry.count]
    same = len({entry.seeds for entry in run}) == 1 and any(entry.count < entry.asked for entry in run)
    return run[0].seeds if same else ()


Standing = Literal["", "best", "second"]


def standings(grid: Grid, *, paper: bool = False) -> dict[str, list[Standing]]:
    """For each cell whether it is the best or the second of its column, as far as the printed digits tell them apart.

    Columns in which more is neither better nor worse have none; a second needs a third. Settings do not compete.
    """
    found: dict[str, list[Standing]] = {row: [""] * len(grid.heads) for row in grid.rows}
    if grid.side != "method":
        return found
    for column in range(len(grid.heads)):
        values = {row: _printed(entries[column], paper) for row, entries in grid.rows.items()}
        known = [value for value in values.values() if value is not None]
        up = rises(next(iter(grid.rows.values()))[column].metric)
        if up is None or len(known) < 2:
            continue
        order = sorted(set(known), reverse=up)
        for row, value in values.items():
            if value == order[0]:
                found[row][column] = "best"
            elif len(order) > 1 and value == order[1] and len(known) > 2:
                found[row][column] = "second"
    return found


def rises(metric: str) -> bool | None:
    """Whether more of a metric is better; None where neither is."""
    name = NAMES.get(metric, metric)
    return True if "↑" in name or metric in ("macro", "worst") else False if "↓" in name else None


def _printed(entry: Entry, paper: bool) -> float | None:
    value = entry.paper_mean if paper else entry.mean if entry.count else None
    return None if value is None or value != value else round(value, digits(value))


def caption(study: Study, grid: Grid, seeds: Sequence[int]) -> str:
    rate = " (best learning rate)" if study.rates else ""
    what = f": {grid.what}" if grid.what else ""
    return f"{study.title}{f', {grid.part}' if grid.part else ''}{rate}{what}, {spoken(grid.seeds or seeds)}"


def spoken(seeds: Sequence[int]) -> str:
    """Seeds as one would say them: "seeds 42–51"."""
    listed = sorted(seeds)
    if len(listed) > 2 and listed == list(range(listed[0], listed[-1] + 1)):
        return f"seeds {listed[0]}–{listed[-1]}"
    if len(listed) > 4:
        return f"{len(listed)} seeds"
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def terminal(study: Study, cells: Sequence[Entry], seeds: Sequence[int], width: int = 80) -> list[Table]:
    """Rich tables no wider than `width`; the paper's number stands under ours, in red where they differ."""
    tables = []
    for grid in (part for whole in grids(study, cells) for part in _cut(whole, width)):
        table = ruled(grid.heads, caption(study, grid, seeds))
        for method, row in grid.rows.items():
            table.add_row(Text(method), *(_cell(entry) for entry in row))
        tables.append(table)
    return tables


def ruled(heads: Sequence[str], title: str | None = None) -> Table:
    """A table for the terminal, still without rows: a column of names, and one under each head."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.show_edge = False
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _cut(grid: Grid, width: int) -> Iterator[Grid]:
    """A wide table as several, with as many of its columns in each as fit."""
    columns = [
        [head, *(text for row in grid.rows.values() for text in (row[i].ours(), row[i].paper()))]
        for i, head in enumerate(grid.heads)
    ]
    widths = [max(map(len, texts)) for texts in columns]
    for part in fitting(widths, width - max(map(len, grid.rows), default=0)):
        yield replace(grid, heads=grid.heads[part], rows={m: row[part] for m, row in grid.rows.items()})


def fitting(widths: Sequence[int], width: int) -> Iterator[slice]:
    """The columns in parts, as many in each as fit into what the column of names leaves of a line."""
    start = 0
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and sum(w + 2 for w in widths[start : stop + 1]) < width:  # 2: the gap between columns
            stop += 1
        yield slice(start, stop)
        start = stop


def _cell(entry: Entry) -> Text:
    text = Text(entry.ours())
    if entry.paper_mean is not None:
        text.append(f"\n{entry.paper()}", style="dim" if entry.agrees else "red")
    return text


def csv(cells: Sequence[Entry]) -> str:
    frame = pd.DataFrame([vars(entry) | {"difference": entry.difference} for entry in cells])
    return str(frame.drop(columns=["head", "tolerance", "asked", "seeds"]).round(6).to_csv(index=False))


def markdown(study: Study, cells: Sequence[Entry], seeds: Sequence[int]) -> str:
    blocks = []
    emphasis: dict[Standing, str] = {"": "{}", "best": "**{}**", "second": "<ins>{}</ins>"}
    for grid in grids(study, cells):
        theirs = " (the paper's in parentheses)" if any(e.paper() for row in grid.rows.values() for e in row) else ""
        lines = [f"**{caption(study, grid, seeds)}**{theirs}", ""]
        lines += [f"| {grid.side} | {' | '.join(grid.heads)} |", "|" + " --- |" * (len(grid.heads) + 1)]
        marks = standings(grid)
        for method, row in grid.rows.items():
            shown = (emphasis[mark].format(entry.ours()) for mark, entry in zip(marks[method], row, strict=True))
            texts = [f"{ours}{f' ({e.paper()})' if e.paper() else ''}" for ours, e in zip(shown, row, strict=True)]
            lines.append(f"| {method} | {' | '.join(texts)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"
