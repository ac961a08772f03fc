"""Everything that a set of studies ends as, on disk and in the terminal."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from ..engine import Store
from ..files import write_whole
from ..studies import Study
from . import figures, ledger, tables
from .frame import collect
from .style import MARKS


def seed_sets(study: Study, seeds: Sequence[int] | None) -> list[tuple[int, ...]]:
    """At which seeds a study is reported: the paper's and the ten, or those that were asked for."""
    if seeds is not None:
        return [tuple(seeds)]
    return list(dict.fromkeys([study.seeds, study.ten]))


class Book:
    """The results of some studies, ready to be shown and written."""

    def __init__(
        self,
        studies: Sequence[Study],
        store: Store,
        *,
        seeds: Sequence[int] | None = None,
        epochs: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.studies, self.seeds = list(studies), seeds
        self.frames: dict[str, pd.DataFrame] = {
            study.name: collect(study, store, seeds=seeds, epochs=epochs, device=device) for study in studies
        }
        self.judgements = {
            study.name: [ledger.judge(study, self.frames[study.name], s) for s in seed_sets(study, seeds)]
            for study in studies
        }

    def show(self, console: Console) -> None:
        for study in self.studies:
            console.rule(f"[bold]{study.title}", align="left")
            console.print(study.question, style="italic")
            seeds = seed_sets(study, self.seeds)[0]
            for table in tables.terminal(study, tables.entries(study, self.frames[study.name], seeds), seeds):
                console.print(table, "", sep="\n")
            if study.claims:
                console.print(ledger.terminal(self.judgements[study.name]))
            said = ledger.agreement(study, self.frames[study.name])
            if said:
                console.print(said)

    def write(self, folder: Path) -> list[Path]:
        """Tables as CSV, Markdown and LaTeX; the ledger; the figures. Returns what was written."""
        written = []
        for study in self.studies:
            frame, sets = self.frames[study.name], seed_sets(study, self.seeds)
            cells = [tables.entries(study, frame, seeds) for seeds in sets]
            texts = {
                "csv": tables.csv([entry for part in cells for entry in part]),
                "md": "\n".join(tables.markdown(study, c, s) for c, s in zip(cells, sets, strict=True)),
                "tex": tables.latex(study, cells[0], sets[0]),
            }
            for suffix, text in texts.items():
                written.append(_write(folder / "tables" / f"{study.name}.{suffix}", text))
        judged = [j for study in self.studies for column in self.judgements[study.name] for j in column]
        if judged:
            written.append(_write(folder / "ledger.csv", str(ledger.rows(judged).to_csv(index=False))))
            said = ((s.title, ledger.agreement(s, self.frames[s.name])) for s in self.studies)
            lines = [f"- {title}: {text}" for title, text in said if text]
            written.append(_write(folder / "ledger.md", "\n".join([ledger.markdown(judged), *lines, ""])))
        return written + self._figures(folder / "figures")

    def _figures(self, folder: Path) -> list[Path]:
        drawable = [study for study in self.studies if set(study.methods) <= set(MARKS)]
        full = {study.name for study in drawable if len(self.frames[study.name])}
        drawn = []
        if {"scale-stress", "rescaling"} <= full:
            drawn += figures.save(figures.stress_curves(self.frames), folder / "stress")
            drawn += figures.save(figures.degradation(self.frames), folder / "degradation")
        for study in self.studies:
            if study.name in full and "scale" in dict(study.conditions[0].options):
                drawn += figures.save(figures.curves(study, self.frames[study.name]), folder / study.name)
            elif study.name in full and study.problem == "heterogeneous":
                drawn += figures.save(figures.regimes(study, self.frames[study.name]), folder / study.name)
        return drawn


def _write(path: Path, text: str) -> Path:
    write_whole(path, text.encode(), durable=False)
    return path
