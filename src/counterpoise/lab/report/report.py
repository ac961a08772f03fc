"""The report on a set of studies: shown in the terminal and written to files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from ..files import write_atomic
from ..studies import Study
from . import comparison, latex, ledger, ranks, saturation, tables
from .figures.render_matplotlib import FigureWriter
from .figures.spec import FigureSpec
from .figures.study_figures import study_figures
from .run_scores import (
    FinishedCells,
    Results,
    Selection,
    collect_fields,
    collect_histories,
    collect_scores,
    finished_cells,
    keep_best_rates,
)


def default_seed_sets(study: Study, seeds: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Return the sets of seeds at which a study is reported: the paper's, and the ten or the given ones."""
    if seeds is not None:
        return list(dict.fromkeys([study.seeds, tuple(seeds)])) if set(study.seeds) < set(seeds) else [tuple(seeds)]
    return [study.seeds] if study.paper_seeds_only else list(dict.fromkeys([study.seeds, study.ten_seeds]))


class Report:
    """The results of some studies: their scores, tables, judged claims and figures.

    Args:
        studies: the studies to report.
        results: where the results of their runs are looked up.
        seeds: the seeds to use; None for all of the study.
        epochs: the number of epochs, if it differs from the study's.
        device: the device on which the runs were trained.
        recorded: the scores of each study's runs, if they are known; otherwise they are collected from `results`.
        choose_seed_sets: returns the sets of seeds at which a study is reported; None to derive them from `seeds`.
    """

    def __init__(
        self,
        studies: Sequence[Study],
        results: Results,
        *,
        seeds: Sequence[int] | None = None,
        epochs: int | None = None,
        device: str = "cpu",
        recorded: Mapping[str, pd.DataFrame] | None = None,
        choose_seed_sets: Callable[[Study, pd.DataFrame], list[tuple[int, ...]]] | None = None,
    ) -> None:
        self.results = results
        self.studies = [study.with_epochs(epochs) for study in studies]
        selection: Selection = {"seeds": seeds, "epochs": epochs, "device": device}
        self.cells: dict[str, FinishedCells] = {
            study.name: finished_cells(study, results, **selection) if recorded is None else []
            for study in self.studies
        }
        self.runs: dict[str, pd.DataFrame] = {
            study.name: collect_scores(study, results, cells=self.cells[study.name])
            if recorded is None
            else recorded[study.name]
            for study in self.studies
        }
        self._entries: dict[tuple[str, tuple[int, ...]], list[tables.Entry]] = {}
        self.frames = {
            study.name: keep_best_rates(self.runs[study.name], by_condition=bool(study.rate_seeds))
            if study.rates
            else self.runs[study.name]
            for study in self.studies
        }
        self.seed_sets = {
            study.name: choose_seed_sets(study, self.frames[study.name])
            if choose_seed_sets
            else default_seed_sets(study, seeds)
            for study in self.studies
        }
        # Claims are not judged at separate seeds of a search.
        self.judgements = {
            study.name: [ledger.judge(study, self.frames[study.name], s) for s in sets if set(s) & set(sets[0])]
            for study, sets in zip(self.studies, self.seed_sets.values(), strict=True)
        }

    def show(self, console: Console) -> None:
        """Print the tables and the claims of each study."""
        for study in self.studies:
            console.rule(f"[bold]{study.title}", align="left")
            console.print(study.question, style="italic")
            frame, seeds = self.frames[study.name], self.seed_sets[study.name][0]
            rankings = ranks.rankings(study, frame) if study.layout == "ranks" else []
            printed = comparison.printed_tables(study, frame) if study.layout == "comparison" else []
            for part in ranks.terminal([*ranks.printed_tables(rankings), *printed], console.width):
                console.print(part, "", sep="\n")
            if not rankings:
                cells = self.entries(study, seeds)
                for table in tables.terminal(study, cells, seeds, console.width):
                    console.print(table, "", sep="\n")
            if study.claims:
                console.print(ledger.terminal(self.judgements[study.name]))
            agreement = ledger.agreement(study, frame)
            if agreement:
                console.print(agreement)
        rows = saturation.saturation_rows(self.studies, self.frames)
        if len(rows):
            console.print(saturation.terminal(rows))

    def write(self, folder: Path) -> list[Path]:
        """Write tables, ledger, scores and figures. Return the files."""
        with FigureWriter() as writer:
            figures = [
                file for study in self.studies for file in writer.submit(self.figures(study), folder / "figures")
            ]
            return figures + self.write_texts(folder)

    def write_texts(self, folder: Path) -> list[Path]:
        """Write everything except the figures: scores, tables as CSV, Markdown and LaTeX, and the ledger."""
        texts: dict[str, str] = {}
        for study in self.studies:
            texts |= self.study_texts(study)
        texts |= self._ledger_texts()
        rows = saturation.saturation_rows(self.studies, self.frames)
        if len(rows):
            texts["tables/saturation.csv"] = saturation.csv(rows)
            texts["tables/saturation.md"] = saturation.markdown(rows)
            texts["tables/saturation.tex"] = latex.saturation(rows)
        parts = sorted(Path(name).stem for name in texts if name.endswith(".tex"))
        texts["tables/all.tex"] = latex.document(parts)
        for name, text in texts.items():
            write_atomic(folder / name, text.encode(), durable=False, to_pipes=False)
        return [folder / name for name in texts]

    def entries(self, study: Study, seeds: tuple[int, ...]) -> list[tables.Entry]:
        """Return every cell of the study's tables at these seeds. They are computed once."""
        place = study.name, seeds
        if place not in self._entries:
            self._entries[place] = tables.table_entries(study, self.frames[study.name], seeds)
        return self._entries[place]

    def study_texts(self, study: Study) -> dict[str, str]:
        """Return the tables and scores of a study by file name."""
        frame, seed_sets = self.frames[study.name], self.seed_sets[study.name]
        texts = {}
        if study.layout == "comparison":
            texts[f"tables/{study.name}-ranks.md"] = ranks.markdown(comparison.printed_tables(study, frame))
            texts[f"tables/{study.name}-ranks.csv"] = comparison.csv(study, frame)
        rankings = ranks.rankings(study, frame) if study.layout == "ranks" else []
        if rankings:
            texts[f"tables/{study.name}-ranks.md"] = ranks.markdown(ranks.printed_tables(rankings))
            texts[f"tables/{study.name}-ranks.csv"] = ranks.csv(rankings)
            texts[f"tables/{study.name}-ranks.tex"] = latex.ranks(rankings)
        cells = [self.entries(study, seeds) for seeds in seed_sets]
        markdown = (tables.markdown(study, part, seeds) for part, seeds in zip(cells, seed_sets, strict=True))
        texts[f"tables/{study.name}.csv"] = tables.csv([entry for part in cells for entry in part])
        texts[f"tables/{study.name}.md"] = "\n".join(markdown)
        texts[f"tables/{study.name}.tex"] = latex.tables(study, cells[0], seed_sets[0])
        runs = self.runs[study.name]
        runs = runs.assign(form=study.form) if study.form else runs  # lets a later report recognise the form
        texts[f"runs/{study.name}.csv"] = str(runs.to_csv(index=False, float_format="%.9g"))
        return texts

    def _ledger_texts(self) -> dict[str, str]:
        judged = [j for study in self.studies for column in self.judgements[study.name] for j in column]
        if not judged:
            return {}
        agreements = ((study.title, ledger.agreement(study, self.frames[study.name])) for study in self.studies)
        lines = [f"- {title}: {text}" for title, text in agreements if text]
        return {
            "ledger.csv": str(ledger.ledger_frame(judged).to_csv(index=False)),
            "ledger.md": "\n".join([ledger.markdown(judged), *lines, ""]),
        }

    def figures(self, study: Study) -> dict[str, FigureSpec]:
        """Return every figure of a study by the name of its file."""
        return study_figures(
            study,
            self.frames,
            lambda: collect_histories(study, self.results, cells=self.cells[study.name]),
            lambda: collect_fields(study, self.results, cells=self.cells[study.name]),
        )
