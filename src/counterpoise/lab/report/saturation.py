"""The bounded chart: how near BPGS comes to its edge, and how much of the sigmoid's derivative is left there."""

from collections.abc import Mapping, Sequence

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..engine import Store
from ..studies import Study
from .results import collect

HEADS = ("data", "T", "seeds", "max |z|/τ", "paper", "final cap", "paper", "σ(1−σ) at the max", "σ(1−σ) at the end")


def rows(studies: Sequence[Study], frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row for each data set of the paper's table that was run: the largest values over seeds and tasks."""
    found = []
    for study in studies:
        said, frame = study.saturation, frames[study.name]
        if said is None or not len(frame):
            continue
        runs = frame[(frame["method"] == "BPGS") & (frame["condition"] == said.condition)].dropna(
            subset=["peak", "reach"]
        )
        if len(runs):
            peak, reach = float(runs["peak"].max()), float(runs["reach"].max())
            row = {"data": study.title, "tasks": said.tasks, "seeds": len(runs), "largest": peak}
            row |= {"paper_largest": said.largest, "cap": reach, "paper_cap": said.cap}
            found.append(row | {"derivative_largest": derivative(peak), "derivative_cap": derivative(reach)})
    return pd.DataFrame(found)


def anywhere(studies: Sequence[Study], store: Store, device: str | None = None) -> pd.DataFrame:
    """The rows of all studies, from every device that they were run on, or from one."""
    parts = []
    for study in studies:
        places = store.devices(study.name) if device is None else [device]
        found = {place: rows([study], {study.name: collect(study, store, device=place)}) for place in places}
        found = {place: part for place, part in found.items() if len(part)}
        for place, part in found.items():
            parts.append(part.assign(data=f"{study.title}, {place}") if len(found) > 1 else part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def derivative(position: float) -> float:
    """σ(1 − σ) where |z|/τ = 2σ − 1; its maximum is ¼."""
    return (1 - position * position) / 4


def texts(row: pd.Series) -> list[str]:
    numbers = (f"{row.largest:.4f}", f"{row.paper_largest:.4f}", f"{row.cap:.4f}", f"≤ {row.paper_cap:.2f}")
    left = (f"{row.derivative_largest:.3f}", f"{row.derivative_cap:.3f}")
    return [row.data, str(row.tasks), str(row.seeds), *numbers, *left]


def terminal(found: pd.DataFrame) -> Table:
    table = Table(title="Bounded chart of BPGS", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for head in HEADS:
        first = head == "data"
        table.add_column(head, justify="left" if first else "right", no_wrap=first)
    for _, row in found.iterrows():
        table.add_row(*texts(row))
    return table


def csv(found: pd.DataFrame) -> str:
    return str(found.round(6).to_csv(index=False))


def markdown(found: pd.DataFrame) -> str:
    lines = [f"| {' | '.join(HEADS)} |".replace("|z|", "\\|z\\|"), "|" + " --- |" * len(HEADS)]
    lines += [f"| {' | '.join(texts(row))} |" for _, row in found.iterrows()]
    return "\n".join(lines) + "\n"
