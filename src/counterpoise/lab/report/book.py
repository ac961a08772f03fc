"""Everything that a set of studies ends as, on disk and in the terminal."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from ..data.dense import DENSE
from ..engine import Store
from ..files import write_whole
from ..studies import Study
from . import dense, diagrams, figures, ledger, ranks, saturation, tables, training
from .frame import best_rates, collect, curves, dense_curves
from .style import MARKS


def seed_sets(study: Study, seeds: Sequence[int] | None) -> list[tuple[int, ...]]:
    """At which seeds a study is reported: the paper's, and the ten or those that were asked for."""
    if seeds is not None:
        return list(dict.fromkeys([study.seeds, tuple(seeds)])) if set(study.seeds) < set(seeds) else [tuple(seeds)]
    return [study.seeds] if study.brief else list(dict.fromkeys([study.seeds, study.ten]))


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
        self.studies, self.store, self.seeds, self.epochs, self.device = list(studies), store, seeds, epochs, device
        self.runs: dict[str, pd.DataFrame] = {
            study.name: collect(study, store, seeds=seeds, epochs=epochs, device=device) for study in studies
        }
        self.frames = {s.name: best_rates(self.runs[s.name]) if s.rates else self.runs[s.name] for s in studies}
        self.judgements = {
            study.name: [ledger.judge(study, self.frames[study.name], s) for s in seed_sets(study, seeds)]
            for study in studies
        }

    def show(self, console: Console) -> None:
        for study in self.studies:
            console.rule(f"[bold]{study.title}", align="left")
            console.print(study.question, style="italic")
            seeds = seed_sets(study, self.seeds)[0]
            if study.layout == "ranks":
                console.print(Markdown(ranks.markdown(ranks.rankings(study, self.frames[study.name]))))
            else:
                for table in tables.terminal(study, tables.entries(study, self.frames[study.name], seeds), seeds):
                    console.print(table, "", sep="\n")
            if study.claims:
                console.print(ledger.terminal(self.judgements[study.name]))
            said = ledger.agreement(study, self.frames[study.name])
            if said:
                console.print(said)
        rows = saturation.rows(self.studies, self.frames)
        if len(rows):
            console.print(saturation.terminal(rows))

    def write(self, folder: Path) -> list[Path]:
        """Every run's scores; tables as CSV, Markdown and LaTeX; the ledger; the figures. Returns what was written."""
        written = []
        for study in self.studies:
            frame, sets = self.frames[study.name], seed_sets(study, self.seeds)
            if study.layout == "ranks":
                found = ranks.rankings(study, frame)
                if found:
                    written.append(_write(folder / "tables" / f"{study.name}-ranks.md", ranks.markdown(found)))
                    written.append(_write(folder / "tables" / f"{study.name}-ranks.csv", ranks.csv(found)))
            cells = [tables.entries(study, frame, seeds) for seeds in sets]
            texts = {
                "csv": tables.csv([entry for part in cells for entry in part]),
                "md": "\n".join(tables.markdown(study, c, s) for c, s in zip(cells, sets, strict=True)),
                "tex": tables.latex(study, cells[0], sets[0]),
            }
            for suffix, text in texts.items():
                written.append(_write(folder / "tables" / f"{study.name}.{suffix}", text))
            scores = str(self.runs[study.name].to_csv(index=False, float_format="%.5g"))
            written.append(_write(folder / "runs" / f"{study.name}.csv", scores))
        judged = [j for study in self.studies for column in self.judgements[study.name] for j in column]
        if judged:
            written.append(_write(folder / "ledger.csv", str(ledger.rows(judged).to_csv(index=False))))
            said = ((s.title, ledger.agreement(s, self.frames[s.name])) for s in self.studies)
            lines = [f"- {title}: {text}" for title, text in said if text]
            written.append(_write(folder / "ledger.md", "\n".join([ledger.markdown(judged), *lines, ""])))
        rows = saturation.rows(self.studies, self.frames)
        if len(rows):
            for suffix, text in (("csv", saturation.csv(rows)), ("md", saturation.markdown(rows))):
                written.append(_write(folder / "tables" / f"saturation.{suffix}", text))
        return written + self._figures(folder / "figures")

    def _figures(self, folder: Path) -> list[Path]:
        drawable = [study for study in self.studies if set(study.methods) <= set(MARKS)]
        full = {study.name for study in drawable if len(self.frames[study.name])}
        drawn = []
        if {"scale-stress", "rescaling"} <= full:
            drawn += figures.save(figures.stress_curves(self.frames), folder / "stress")
            drawn += figures.save(figures.degradation(self.frames), folder / "degradation")
        for study in self.studies:
            if study.rates and len(self.frames[study.name]):
                drawn += figures.save(figures.ranking(study, self.frames[study.name]), folder / study.name)
            elif study.name in full and study.layout == "ranks":
                drawn += self._diagrams(study, folder)
            elif study.name in full and study.problem in DENSE:
                drawn += self._dense(study, folder)
            elif study.name in full and study.layout == "metrics":
                drawn += self._training_curves(study, folder)
            elif study.name in full and "scale" in dict(study.conditions[0].options):
                drawn += figures.save(figures.curves(study, self.frames[study.name]), folder / study.name)
            elif study.name in full and study.problem == "heterogeneous":
                drawn += figures.save(figures.regimes(study, self.frames[study.name]), folder / study.name)
        return drawn

    def _diagrams(self, study: Study, folder: Path) -> list[Path]:
        found = ranks.rankings(study, self.frames[study.name])
        if not found:
            return []
        drawn = figures.save(diagrams.critical_difference(found, study.title), folder / f"{study.name}-ranks")
        if ranks.comparable(found):
            first, second = found
            cost = diagrams.cost_of_factors(first, second, study.title)
            drawn += figures.save(cost, folder / f"{study.name}-graded")
        return drawn

    def _dense(self, study: Study, folder: Path) -> list[Path]:
        """For each table that was run: validation curves and weights; scores, where there are methods to compare."""
        frame = self.frames[study.name]
        drawn = []
        for condition in study.conditions:
            here = frame[frame["condition"] == condition.key]
            if not len(here) or "measured" in dict(condition.options):
                continue
            found = dense_curves(
                study, condition.key, self.store, seeds=self.seeds, epochs=self.epochs, device=self.device
            )
            name = f"{study.name}-{condition.key.replace(' ', '-').replace('=', '-').replace('×', 'x')}"
            drawn += figures.save(dense.curves(study, condition, found), folder / f"{name}-curves")
            drawn += figures.save(dense.weights(study, condition, found), folder / f"{name}-weights")
            if here["method"].nunique() > 1:
                drawn += figures.save(dense.scores(study, condition, here), folder / f"{name}-scores")
                drawn += figures.save(dense.heatmap(study, condition, here), folder / f"{name}-heatmap")
        return drawn

    def _training_curves(self, study: Study, folder: Path) -> list[Path]:
        run = set(self.frames[study.name]["condition"])
        drawn = []
        for condition in study.conditions:
            if condition.key in run:
                found = curves(
                    study, condition.key, self.store, seeds=self.seeds, epochs=self.epochs, device=self.device
                )
                name = f"{study.name}-{condition.key.replace(', ', '-').replace(' ', '-')}"
                drawn += figures.save(training.curves(study, condition, found), folder / name)
        return drawn


def _write(path: Path, text: str) -> Path:
    write_whole(path, text.encode(), durable=False)
    return path
