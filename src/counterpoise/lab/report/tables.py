"""Tables: ours beside the paper's, for the terminal, CSV, Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..studies import Study

AGREES = 0.0035  # a difference that rounding to three digits can make of VALUE_TOLERANCE


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

    @property
    def difference(self) -> float | None:
        return None if self.paper_mean is None else self.mean - self.paper_mean

    def ours(self) -> str:
        return "–" if self.count == 0 or self.mean != self.mean else f"{self.mean:.3f} ± {self.sd:.3f}"

    def paper(self) -> str:
        return "" if self.paper_mean is None else f"{self.paper_mean:.3f} ± {self.paper_sd:.3f}"


def entries(study: Study, frame: pd.DataFrame, seeds: Sequence[int]) -> list[Entry]:
    """Every cell of the study's tables at these seeds."""
    chosen = frame[frame["seed"].isin(list(seeds))]
    found = []
    for metric in study.metrics:
        for part, conditions in study.parts().items():
            for method in study.methods:
                for condition in conditions:
                    if condition.only and method not in condition.only:
                        continue
                    here = (chosen["method"] == method) & (chosen["condition"] == condition.key)
                    values = chosen.loc[here, metric]
                    paper = study.paper.get(metric, {}).get(method, {}).get(condition.key, (None, None))
                    sd = float(values.std(ddof=study.ddof)) if len(values) > study.ddof else 0.0
                    mean = float(values.mean()) if len(values) else float("nan")
                    place = (study.name, part, metric, method, condition.key, condition.head or condition.key)
                    found.append(Entry(*place, mean, sd, len(values), *paper))
    return found


def grids(cells: Sequence[Entry]) -> list[tuple[str, str, list[str], dict[str, list[Entry]]]]:
    """The entries as tables: metric, part, heads, and the row of each method."""
    tables = []
    for (metric, part), group in groupby(cells, key=lambda e: (e.metric, e.part)):
        rows: dict[str, list[Entry]] = {}
        for entry in group:
            rows.setdefault(entry.method, []).append(entry)
        heads = [entry.head for entry in next(iter(rows.values()))]
        run = [any(row[i].count for row in rows.values()) for i in range(len(heads))]
        if any(run):  # columns that were not run are left out
            heads = [head for head, here in zip(heads, run, strict=True) if here]
            rows = {m: [e for e, here in zip(row, run, strict=True) if here] for m, row in rows.items()}
        tables.append((metric, part, heads, rows))
    return tables


def caption(study: Study, metric: str, part: str, seeds: Sequence[int]) -> str:
    score = {"macro": "macro score", "worst": "worst-task score", "reach": "largest |z|/τ at the end"}.get(
        metric, metric
    )
    return f"{study.title}{f', {part}' if part else ''}: {score}, {spoken(seeds)}"


def spoken(seeds: Sequence[int]) -> str:
    """Seeds as one would say them: "seeds 42–51"."""
    listed = sorted(seeds)
    if len(listed) > 2 and listed == list(range(listed[0], listed[-1] + 1)):
        return f"seeds {listed[0]}–{listed[-1]}"
    if len(listed) > 4:
        return f"{len(listed)} seeds"
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def terminal(study: Study, cells: Sequence[Entry], seeds: Sequence[int]) -> list[Table]:
    """Rich tables; the paper's number stands under ours, in red where they differ."""
    tables = []
    for metric, part, heads, rows in grids(cells):
        title = caption(study, metric, part, seeds)
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
        table.show_edge = False
        table.add_column("", no_wrap=True)
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        for method, row in rows.items():
            table.add_row(Text(method), *(_cell(entry) for entry in row))
        tables.append(table)
    return tables


def _cell(entry: Entry) -> Text:
    text = Text(entry.ours())
    if entry.paper_mean is not None:
        near = entry.count == 0 or abs(entry.mean - entry.paper_mean) < AGREES
        text.append(f"\n{entry.paper()}", style="dim" if near else "red")
    return text


def csv(cells: Sequence[Entry]) -> str:
    frame = pd.DataFrame([vars(entry) | {"difference": entry.difference} for entry in cells])
    return str(frame.drop(columns="head").round(6).to_csv(index=False))


def markdown(study: Study, cells: Sequence[Entry], seeds: Sequence[int]) -> str:
    blocks = []
    for metric, part, heads, rows in grids(cells):
        lines = [f"**{caption(study, metric, part, seeds)}** (the paper's in parentheses)", ""]
        lines += [f"| method | {' | '.join(heads)} |", "|" + " --- |" * (len(heads) + 1)]
        for method, row in rows.items():
            texts = [f"{e.ours()}{f' ({e.paper()})' if e.paper() else ''}" for e in row]
            lines.append(f"| {method} | {' | '.join(texts)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


LATEX = str.maketrans({"×": r"$\times$", "ω": r"$\omega$", "ℓ": r"$\ell$", "±": r"$\pm$", "–": "--", "%": r"\%"})


def latex(study: Study, cells: Sequence[Entry], seeds: Sequence[int]) -> str:
    blocks = []
    for metric, part, heads, rows in grids(cells):
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{caption(study, metric, part, seeds)}.}}"]
        lines += [
            rf"\begin{{tabular}}{{l{'c' * len(heads)}}}",
            r"\toprule",
            f"Method & {' & '.join(heads)} \\\\",
            r"\midrule",
        ]
        lines += [f"{method} & {' & '.join(entry.ours() for entry in row)} \\\\" for method, row in rows.items()]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        blocks.append("\n".join(lines).translate(LATEX))
    return "\n\n".join(blocks) + "\n"
