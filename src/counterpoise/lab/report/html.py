"""The page: the claims ledger, then every study with its tables, figures, predictions and runs."""

import base64
import gzip
import itertools
import json
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import counterpoise as cp

from ..data.images import CLASSES
from ..data.visualisation import CLASS_COLOURS
from ..files import write_atomic
from ..studies import STUDIES, Cell
from .figures.render_matplotlib import FigureWriter
from .figures.spec import FigureSpec
from .html_ledger import VERDICT_ORDER, LedgerRow, ledger_groups, ledger_rows
from .html_sections import (
    HtmlTable,
    StudySection,
    html_figure,
    printed_table,
    saturation_tables,
    section_anchor,
    study_section,
)
from .leaderboard_page import LeaderboardSection, leaderboard_section, run_scores_file
from .leaderboard_text import keep_together
from .report import Report
from .run_collection import CollectedRuns, FinishedRun
from .variants import ReportVariant, report_variants, seeds_to_report

DOCUMENT = "report.pdf"
TASK_NAMES = {"image": "image", "seg": "segmentation", "depth": "depth", "normals": "surface normals"}


@dataclass
class Page:
    """The content of the page, and the files that belong to it."""

    sections: list[StudySection] = field(default_factory=list)
    rows: list[LedgerRow] = field(default_factory=list)
    saturation: list[HtmlTable] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    scores: dict[str, pd.DataFrame] = field(default_factory=dict)  # of the full form of each study, at all rates
    finished: dict[str, list[tuple[Cell, FinishedRun]]] = field(default_factory=dict)  # the runs of these scores
    leaderboard: LeaderboardSection = field(default_factory=LeaderboardSection)
    document: str = ""  # name of the PDF file beside the page

    def sort(self) -> None:
        """Sort claims and sections by study."""
        places = {name: place for place, name in enumerate(STUDIES)}
        titles = {study.title: place for place, study in enumerate(STUDIES.values())}
        self.rows.sort(key=lambda row: titles[row.study])
        self.sections.sort(key=lambda section: places.get(section.study, len(places)))


def write_page(collected: CollectedRuns, folder: Path, variants: Sequence[ReportVariant] | None = None) -> list[Path]:
    """Write index.html, and next to it tables, ledger, scores and figures. Return all files, the page first.

    Args:
        collected: The runs and scores.
        folder: The folder of the page.
        variants: The studies to report. Default: all studies of the laboratory that have runs.
    """
    return build_page(collected, folder, variants).files


def build_page(
    collected: CollectedRuns, folder: Path, variants: Sequence[ReportVariant] | None = None, *, with_pdf: bool = False
) -> Page:
    """Write the files of `write_page` and return the content of the page.

    Args:
        collected: The runs and scores.
        folder: The folder of the page.
        variants: The studies to report. Default: all studies of the laboratory that have runs.
        with_pdf: Whether the page links to a PDF file in the same folder, `DOCUMENT`. Default: ``False``.
    """
    page = Page(document=DOCUMENT if with_pdf else "")
    variants = report_variants(collected) if variants is None else variants
    with FigureWriter() as writer:  # draws in the background
        for variant, name in zip(variants, _folder_names(variant.label for variant in variants), strict=True):
            _add_variant(page, collected, variant, folder, name, writer)
        page.sort()
        _add_leaderboard(page, folder, writer)
        index = folder / "index.html"
        # Names of folders may contain bytes that are not valid UTF-8.
        write_atomic(index, render_page(page, collected).encode(errors="replace"), durable=False, to_pipes=False)
    page.files.insert(0, index)
    return page


def _add_variant(
    page: Page, collected: CollectedRuns, variant: ReportVariant, folder: Path, name: str, writer: FigureWriter
) -> None:
    """Write the files of a variant into the folder `name`, and add its studies to the page."""
    report = Report(
        variant.studies,
        collected if variant.recorded is None else CollectedRuns(),  # recorded scores have no histories
        seeds=variant.seeds or None,
        epochs=variant.epochs,
        device=variant.device or "cpu",
        recorded=variant.recorded,
        choose_seed_sets=seeds_to_report,
    )
    figures, written = dict[str, dict[str, FigureSpec]](), list[Path]()
    for study in variant.studies:
        figures[study.name] = report.figures(study)
        written += writer.submit(figures[study.name], folder / name / "figures")
    written += report.write_texts(folder / name)
    relative = [path.relative_to(folder).as_posix() for path in written]
    for study in variant.studies:
        page.rows += ledger_rows(report, study, variant, section_anchor(study, name))
        page.sections.append(study_section(report, study, variant, collected, figures[study.name], relative, name))
        if not study.form and len(report.runs[study.name]) > len(page.scores.get(study.name, ())):
            page.scores[study.name] = report.runs[study.name]
            cells = variant.cells.get(study.name, ())
            page.finished[study.name] = [(cell, collected.runs[cell.run]) for cell in cells]
    page.saturation += saturation_tables(report, variant, name)
    page.files += written


def _add_leaderboard(page: Page, folder: Path, writer: FigureWriter) -> None:
    """Compute the leaderboard from the scores of all studies, and write its files."""
    page.leaderboard = leaderboard_section(page.scores, page.finished)
    page.files += writer.submit(page.leaderboard.figures, folder / "figures")
    for name, text in page.leaderboard.texts.items():
        write_atomic(folder / name, text.encode(), durable=False, to_pipes=False)
        page.files.append(folder / name)


def render_page(page: Page, collected: CollectedRuns) -> str:
    """Return the page as HTML. The template escapes everything that comes from files."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = files(__package__) / "templates"
    environment = Environment(
        loader=PackageLoader("counterpoise.lab.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["keep_together"] = keep_together
    return environment.get_template("page.html.j2").render(
        sections=page.sections,
        document=page.document,
        groups=ledger_groups(page.rows),
        has_ledger=any(section.study in STUDIES for section in page.sections),
        saturation=page.saturation,
        leaderboard=page.leaderboard,
        leaderboard_figures=[html_figure(name, spec) for name, spec in page.leaderboard.figures.items()],
        printed_table=printed_table,
        run_files=run_files,
        run_scores_file=run_scores_file,
        folders={section.anchor: section.folder for section in page.sections},
        repeated_titles=_repeated(section.title for section in page.sections),
        counts={verdict: sum(row.verdict == verdict for row in page.rows) for verdict in VERDICT_ORDER},
        collected=collected,
        runs=sum(section.count for section in page.sections),
        classes=dict(zip(CLASSES, CLASS_COLOURS, strict=True)),
        tasks=TASK_NAMES,
        versions=f"counterpoise {cp.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        css=(templates / "page.css").read_text(),
        js=(templates / "page.js").read_text(),
        packed=PackedFigures(),
        plotly=compressed_plotly(),
    )


def run_files(sections: Iterable[StudySection], studies: Sequence[str]) -> dict[str, str]:
    """Return the files of the runs of some studies by title."""
    return {
        f"{section.title} {section.variant}".strip(): f"{section.folder}runs/{section.study}.csv"
        for section in sections
        if section.study in studies
    }


class PackedFigures:
    """The figures of a page as one compressed text, to which the template adds them in the order of the page."""

    def __init__(self) -> None:
        self.figures: list[str] = []

    def add(self, figure: dict[str, Any]) -> int:
        """Add a figure and return its number."""
        self.figures.append(json.dumps(figure, allow_nan=False, separators=(",", ":")))
        return len(self.figures) - 1

    def text(self) -> str:
        """Return all figures, one line of JSON each, compressed."""
        return compress("\n".join(self.figures))


@cache
def compressed_plotly() -> str:
    """Return the JavaScript library that draws the figures, compressed."""
    from plotly.offline import get_plotlyjs

    return compress(get_plotlyjs())


def compress(text: str) -> str:
    """Return a text as base64 of gzip, which the page decompresses."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _repeated(titles: Iterable[str]) -> Sequence[str]:
    return [title for title, count in Counter(titles).items() if count > 1]


def _folder_names(labels: Iterable[str]) -> list[str]:
    """Turn labels into distinct names of folders."""
    names: list[str] = []
    for label in labels:
        name = "-".join("".join(c if c.isalnum() and c.isascii() else " " for c in label.lower()).split())
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        names.append(name if name not in names else next(other for other in numbered if other not in names))
    return names
