"""Saturation of BPGS: the largest |z|/τ relative to its bound of 1, and the remaining derivative of the sigmoid."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..studies import Study
from .markdown import markdown_table
from .run_scores import Results, collect_scores

HEADS = ("data", "T", "seeds", "max |z|/τ", "paper", "final cap", "paper", "σ(1−σ) at the max", "σ(1−σ) at the end")


def saturation_rows(studies: Sequence[Study], frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per data set of the paper's table that was run: the largest values over seeds and tasks."""
    found = []
    for study in studies:
        paper, frame = study.saturation, frames[study.name]
        if paper is None or not len(frame):
            continue
        runs = frame[(frame["method"] == "BPGS") & (frame["condition"] == paper.condition)]
        runs = runs.dropna(subset=["peak", "reach"])
        if len(runs):
            peak, reach = float(runs["peak"].max()), float(runs["reach"].max())
            row = {"data": study.title, "tasks": paper.tasks, "seeds": len(runs), "largest": peak}
            row |= {"paper_largest": paper.largest, "cap": reach, "paper_cap": paper.cap}
            found.append(row | {"derivative_largest": derivative(peak), "derivative_cap": derivative(reach)})
    return pd.DataFrame(found)


class ResultsByDevice(Results, Protocol):
    """Results that also know on which devices a study was run."""

    def devices(self, study: str) -> list[str]: ...


def saturation_on_devices(
    studies: Sequence[Study], results: ResultsByDevice, device: str | None = None
) -> pd.DataFrame:
    """Return the rows of all studies from one device, or from every device that they were run on."""
    parts = []
    for study in studies:
        devices = results.devices(study.name) if device is None else [device]
        rows = {d: saturation_rows([study], {study.name: collect_scores(study, results, device=d)}) for d in devices}
        rows = {name: part for name, part in rows.items() if len(part)}
        for name, part in rows.items():
            parts.append(part.assign(data=f"{study.title}, {name}") if len(rows) > 1 else part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def derivative(position: float) -> float:
    """Return σ(1 − σ) where |z|/τ = 2σ − 1. Its maximum is ¼."""
    return (1 - position * position) / 4


def format_row(row: pd.Series) -> list[str]:
    numbers = (f"{row.largest:.4f}", f"{row.paper_largest:.4f}", f"{row.cap:.4f}", f"≤ {row.paper_cap:.2f}")
    derivatives = (f"{row.derivative_largest:.3f}", f"{row.derivative_cap:.3f}")
    return [row.data, str(row.tasks), str(row.seeds), *numbers, *derivatives]


def terminal(rows: pd.DataFrame) -> Table:
    table = Table(title="Saturation of BPGS", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column(HEADS[0], no_wrap=True)
    for head in HEADS[1:]:
        table.add_column(head, justify="right")
    for _, row in rows.iterrows():
        table.add_row(*format_row(row))
    return table


def csv(rows: pd.DataFrame) -> str:
    return str(rows.round(6).to_csv(index=False))


def markdown(rows: pd.DataFrame) -> str:
    return markdown_table(HEADS, [format_row(row) for _, row in rows.iterrows()]) + "\n"
