"""The sections of the page: each study with its tables, figures and predictions."""

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..data.visualisation import COLUMNS, PREDICTED, TRUTH
from ..studies import Cell, Study
from . import comparison, ledger, ranks, saturation, tables
from .figures.render_plotly import PlotlyPanel, plotly_panels
from .figures.spec import FigureSpec, MarkStyle
from .html_runs import RunDetails, run_details
from .report import Report
from .run_collection import CollectedRuns
from .tables import Highlight
from .variants import ReportVariant

MAX_TABLES, MAX_ROWS = 4, 40
"""Most tables of a study that are shown at once, and rows of them if there are several."""


@dataclass(frozen=True)
class HtmlTable:
    """A table. Each cell has our text, the paper's, how each is highlighted, and whether they differ."""

    caption: str
    heads: list[str]
    rows: list[tuple[str, list[dict[str, Any]]]]
    data: str = ""  # a file with its numbers, relative to the page, unless that of its study


@dataclass(frozen=True)
class HtmlFigure:
    """An interactive figure: its panels and its legend. Its files have the same name."""

    name: str
    title: str
    alt_text: str
    panels: list[PlotlyPanel]
    columns: int
    legend: dict[str, MarkStyle]


@dataclass(frozen=True)
class PredictionSheet:
    """Held-out images (rows) with the ground truth or the predictions of a method (columns)."""

    name: str
    columns: tuple[str, ...]
    picture: str  # a data URL


@dataclass(frozen=True)
class PredictionStrip:
    """The predictions of all methods under one condition."""

    title: str
    sheets: list[PredictionSheet]


@dataclass
class StudySection:
    """A study on the page."""

    study: str
    anchor: str
    title: str
    question: str
    variant: str
    count: int  # of runs; a run may appear in several tables
    facts: list[str]
    folder: str  # of its files, relative to the page
    tables: list[HtmlTable]
    notes: list[str]
    figures: list[HtmlFigure]
    strips: list[PredictionStrip] = field(default_factory=list)
    runs: RunDetails = field(default_factory=lambda: RunDetails({}, []))
    files: list[str] = field(default_factory=list)
    marked_where: str = ""  # when a published value is marked

    @property
    def shown_tables(self) -> int:
        """How many tables are shown at once. The others, which may be long, are expanded on request."""
        lengths = itertools.accumulate(len(table.rows) for table in self.tables[:MAX_TABLES])
        return max(1, sum(length <= MAX_ROWS for length in lengths))

    @property
    def has_paper(self) -> bool:
        """Whether some table has published values."""
        return self._any_cell("paper")

    @property
    def has_differences(self) -> bool:
        """Whether some published values are marked because they differ from ours."""
        return self._any_cell("differs")

    def _any_cell(self, key: str) -> bool:
        return any(cell[key] for table in self.tables for _, cells in table.rows for cell in cells)


def study_section(
    report: Report,
    study: Study,
    variant: ReportVariant,
    collected: CollectedRuns,
    figures: Mapping[str, FigureSpec],
    files: Sequence[str],
    folder: str,
) -> StudySection:
    """Return the section of a study.

    Args:
        report: the report on all studies of the variant.
        study: the study.
        variant: how its runs were made.
        collected: the runs, for their predictions and details.
        figures: the figures of the study by name.
        files: the files of the report, relative to the page.
        folder: the folder of the report, relative to the page.
    """
    frame, rows = report.frames[study.name], report.runs[study.name]
    shown = set(zip(rows["method"], rows["condition"], rows["seed"], strict=True))
    cells = [
        cell for cell in variant.cells.get(study.name, ()) if (cell.method, cell.condition.key, cell.run.seed) in shown
    ]
    count = len({cell.run.key for cell in cells}) or len(rows)
    seeds = {int(seed) for seed in frame["seed"]}
    facts = [f"{count} runs", tables.format_seeds(sorted(seeds - set(study.rate_seeds) or seeds))]
    if variant.device:
        facts.append(variant.device)
    if variant.missing.get(study.name):
        facts.append(_missing_runs(study, cells))
    agreement = ledger.agreement(study, frame)
    return StudySection(
        study.name,
        section_anchor(study, folder),
        study.title,
        study.question,
        variant.label,
        count,
        facts,
        f"{folder}/" if folder else "",
        _study_tables(report, study, f"{folder}/" if folder else ""),
        [agreement] if agreement else [],
        [html_figure(name, spec) for name, spec in figures.items()],
        list(_prediction_strips(study, cells, collected)),
        run_details(cells, collected),
        [name for name in files if Path(name).stem in (study.name, f"{study.name}-ranks", *figures)],
        _marked_where(study),
    )


def _marked_where(study: Study) -> str:
    """Say when a published value is marked, which the tolerance of its table entry decides."""
    if study.layout == "metrics":
        return "ours differs by more than two published standard deviations (without one, never)"
    return f"ours differs by more than {tables.AGREES}"


def _missing_runs(study: Study, cells: Sequence[Cell]) -> str:
    """Say how many methods of a study were not run, or not at all of its seeds."""
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        seeds.setdefault(cell.method, set()).add(cell.run.seed)
    shared = [found & set(study.seeds) for found in seeds.values()]
    missing, other = len(study.methods) - len(seeds), sum(not found for found in shared)
    fewer = sum(0 < len(found) < len(study.seeds) for found in shared)
    parts = [f"{missing} of {len(study.methods)} methods not run"] if missing else []
    parts += [f"{_methods(fewer)} run only at some of {tables.format_seeds(study.seeds)}"] if fewer else []
    parts += [f"{_methods(other)} run only at other seeds"] if other else []
    return ", ".join(parts) or "some conditions not run"


def _methods(count: int) -> str:
    return f"{count} method{'' if count == 1 else 's'}"


def section_anchor(study: Study, folder: str) -> str:
    return f"{study.name}-{folder}" if folder else study.name


def _study_tables(report: Report, study: Study, folder: str) -> list[HtmlTable]:
    frame, found = report.frames[study.name], list[HtmlTable]()
    data = f"{folder}tables/{study.name}-ranks.csv"
    if study.layout == "ranks" and (rankings := ranks.rankings(study, frame)):
        return [replace(_ranking_table(ranking), data=data) for ranking in rankings]
    if study.layout == "comparison":
        found += [replace(printed_table(table), data=data) for table in comparison.printed_tables(study, frame)]
    for seeds in report.seed_sets[study.name]:
        for grid in tables.table_grids(study, report.entries(study, seeds)):
            ours, theirs = tables.mark_best(grid), tables.mark_best(grid, paper=True)
            rows = [
                (method, [_cell(*three) for three in zip(entries, ours[method], theirs[method], strict=True)])
                for method, entries in grid.rows.items()
            ]
            found.append(HtmlTable(tables.caption(study, grid, seeds), grid.heads, rows))
    return found


def _cell(entry: tables.Entry, ours: Highlight, paper: Highlight) -> dict[str, Any]:
    return {
        "text": _with_minus(entry.ours()), "mark": ours, "paper": _with_minus(entry.paper()), "paper_mark": paper,
        "differs": not entry.agrees, "link": "",
    }  # fmt: skip


def _with_minus(text: str) -> str:
    return text.replace("-", "−")


def _plain_cell(text: str, mark: Highlight = "", link: str = "") -> dict[str, Any]:
    return {"text": text, "mark": mark, "paper": "", "paper_mark": "", "differs": False, "link": link}


def _ranking_table(ranking: ranks.Ranking) -> HtmlTable:
    means = ranking.scores.mean()
    marks: dict[int, Highlight] = {0: "best", 1: "second"}
    rows = [
        (str(method), [_plain_cell(f"{value:.2f}", marks.get(place, "")), _plain_cell(f"{means[method]:.3f}")])
        for place, (method, value) in enumerate(ranking.ranks.items())
    ]
    return HtmlTable(f"{ranking.part} (Friedman p = {ranking.p:.2g})", ["average rank", "mean score"], rows)


def printed_table(table: ranks.PrintedTable, link: str = "") -> HtmlTable:
    """Return a table of texts for the page. The cells of its last column link to `link`, if it is given."""
    rows = [
        (name, [*(_plain_cell(text) for text in texts), _plain_cell(last, link=link)])
        for name, *texts, last in table.rows
    ]
    note = f" ({table.note})" if table.note else ""
    return HtmlTable(f"{table.title}{note}", table.heads[1:], rows)


def saturation_tables(report: Report, variant: ReportVariant, folder: str) -> list[HtmlTable]:
    """Return the paper's table on saturation, if any of its studies was run. Its files are in `folder`."""
    found = saturation.saturation_rows(variant.studies, report.frames)
    if not len(found):
        return []
    texts = [saturation.format_row(row) for _, row in found.iterrows()]
    rows = [(name, [_plain_cell(text) for text in rest]) for name, *rest in texts]
    label = f" ({variant.label})" if variant.label else ""
    data = f"{folder}/tables/saturation.csv".lstrip("/")
    return [HtmlTable(f"Saturation of BPGS{label}", list(saturation.HEADS[1:]), rows, data)]


def html_figure(name: str, spec: FigureSpec) -> HtmlFigure:
    """Return a figure for the page. Its files have the same name."""
    return HtmlFigure(name, spec.title, spec.alt_text, plotly_panels(spec), spec.columns, spec.legend())


def _prediction_strips(study: Study, cells: Sequence[Cell], collected: CollectedRuns) -> Iterator[PredictionStrip]:
    """Yield, per condition, the ground truth if it is known and each method's predictions at its first seed.

    A run that belongs to several conditions is shown once.
    """
    shown: set[str] = set()
    for condition in study.conditions:
        truth_sheets: list[PredictionSheet] = []
        sheets: dict[str, PredictionSheet] = {}
        repeated: set[str] = set()
        for cell in cells:
            if cell.condition != condition or cell.method in sheets or cell.method in repeated:
                continue
            if cell.run.key in shown:
                repeated.add(cell.method)
                continue
            finished = collected.runs[cell.run]
            predicted, truth = finished.picture(PREDICTED), finished.picture(TRUTH)
            if predicted is None:
                continue
            if truth is not None and not truth_sheets:  # archives omit photographs that may not be redistributed
                truth_sheets = [PredictionSheet("image and ground truth", COLUMNS[TRUTH], data_url(truth))]
            shown.add(cell.run.key)
            name = f"{cell.method}, seed {cell.run.seed}"
            sheets[cell.method] = PredictionSheet(name, COLUMNS[PREDICTED], data_url(predicted))
        if sheets:
            yield PredictionStrip(condition.part or condition.key, [*truth_sheets, *sheets.values()])


def data_url(picture: bytes) -> str:
    """Return a WebP file as the address of an image."""
    return f"data:image/webp;base64,{base64.b64encode(picture).decode()}"
