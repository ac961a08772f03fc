"""The page: the ledger first, then every study with its tables, figures, pictures and runs; and the files beside it."""

import base64
import itertools
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import counterpoise as cp

from ..data.images import CLASSES
from ..data.visualisation import CLASS_COLOURS, COLUMNS, PREDICTED, TRUTH
from ..engine import Recipe, Run
from ..files import write_whole
from ..studies import STUDIES, Cell, Study
from ..studies.base import RAW
from . import ledger, ranks, saturation, tables
from .figures import rendering
from .figures.interactive import Plot, plots
from .figures.spec import Drawing, Look
from .report import Book
from .run_collection import Edition, Gathered, editions, seeds_of
from .tables import Standing

ORDER: tuple[ledger.Verdict, ...] = ("does not hold", "undecided", "holds", "not run")
"""What failed comes first."""
TASK_NAMES = {"image": "image", "seg": "segmentation", "depth": "depth", "normals": "surface normals"}


@dataclass(frozen=True)
class Row:
    """A claim in the ledger: what was found at each set of seeds, in each reading."""

    study: str
    how: str
    anchor: str
    claim: str
    where: str
    verdict: ledger.Verdict
    lines: list[dict[str, str]]
    parts: list[str]

    @property
    def said(self) -> list[str]:
        """The paper's value of each line; once, where all are the same."""
        found = [line["paper"] for line in self.lines]
        return found[:1] if len(set(found)) == 1 else found


@dataclass(frozen=True)
class Table:
    """A table as the page shows it; a cell has our text, the paper's, how each stands in its column, if they differ."""

    caption: str
    heads: list[str]
    rows: list[tuple[str, list[dict[str, Any]]]]


@dataclass(frozen=True)
class Plotted:
    """A figure: its panels, its legend, and its files."""

    name: str
    title: str
    says: str
    panels: list[Plot]
    columns: int
    legend: dict[str, Look]


@dataclass(frozen=True)
class Strip:
    """Held-out images with what is true of them, and what each method made of them."""

    title: str
    sheets: list[tuple[str, tuple[str, ...], str]]  # a name, its columns, the picture


@dataclass(frozen=True)
class Trained:
    """Runs that differ in their seed alone."""

    method: str
    condition: str
    options: dict[str, str]
    runs: list[dict[str, str]]


@dataclass
class Section:
    """A study."""

    study: str
    anchor: str
    title: str
    question: str
    how: str
    count: int  # of runs: one may stand in several tables
    facts: list[str]
    folder: str  # of its files, relative to the page
    tables: list[Table]
    notes: list[str]
    figures: list[Plotted]
    strips: list[Strip] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def write(gathered: Gathered, folder: Path) -> list[Path]:
    """Writes index.html and, beside it, tables, ledger, scores and figures. Returns what was written."""
    with rendering.Press() as press:  # prints while the page is made
        return _write(gathered, folder, press)


def _write(gathered: Gathered, folder: Path, press: rendering.Press) -> list[Path]:
    sections, rows, charts, written = list[Section](), list[Row](), list[Table](), list[Path]()
    every = editions(gathered)
    for edition, within in zip(every, _slugs(edition.how for edition in every), strict=True):
        book = Book(
            edition.studies,
            gathered if edition.recorded is None else Gathered(),  # scores have no histories to draw
            seeds=edition.seeds or None,
            epochs=edition.epochs,
            device=edition.device or "cpu",
            recorded=edition.recorded,
            sets=seeds_of,
        )
        drawn, made = dict[str, dict[str, Drawing]](), list[Path]()
        for study in edition.studies:
            drawn[study.name] = book.drawings(study)
            made += press.print(drawn[study.name], folder / within / "figures")
        made += book.write_texts(folder / within)
        written += made
        names = [path.relative_to(folder).as_posix() for path in made]
        for study in edition.studies:
            anchor = f"{study.name}-{within}" if within else study.name
            rows += _rows(book, study, edition, anchor)
            sections.append(_section(book, study, edition, anchor, drawn[study.name], gathered))
            sections[-1].folder = f"{within}/" if within else ""
            sections[-1].files = [n for n in names if _belongs(n, study.name, drawn[study.name])]
        charts += _charts(book, edition)
    order, titles = list(STUDIES), [study.title for study in STUDIES.values()]
    rows.sort(key=lambda row: (ORDER.index(row.verdict), titles.index(row.study)))
    sections.sort(key=lambda section: order.index(section.study))
    html = render(sections, rows, charts, gathered)
    page = folder / "index.html"
    write_whole(page, html.encode(errors="replace"), durable=False)  # names of folders may be any bytes
    return [page, *written]


def render(sections: Sequence[Section], rows: Sequence[Row], charts: Sequence[Table], gathered: Gathered) -> str:
    """The page as text. Whatever comes from outside is escaped by the template."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    own = files(__package__) / "templates"
    environment = Environment(
        loader=PackageLoader("counterpoise.lab.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template("page.html.j2").render(
        sections=sections,
        rows=rows,
        charts=charts,
        twice=[name for name, count in Counter(section.title for section in sections).items() if count > 1],
        counts={verdict: sum(row.verdict == verdict for row in rows) for verdict in ORDER},
        gathered=gathered,
        runs=sum(section.count for section in sections),
        classes=dict(zip(CLASSES, CLASS_COLOURS, strict=True)),
        tasks=TASK_NAMES,
        versions=f"counterpoise {cp.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        css=(own / "page.css").read_text(),
        js=(own / "page.js").read_text(),
        plotly=get_plotlyjs(),
    )


def _slugs(texts: Iterable[str]) -> list[str]:
    """Names of folders, each another one."""
    found: list[str] = []
    for text in texts:
        slug = "-".join("".join(c if c.isalnum() and c.isascii() else " " for c in text.lower()).split())
        others = (f"{slug}-{number}" for number in itertools.count(2))
        found.append(slug if slug not in found else next(other for other in others if other not in found))
    return found


def _belongs(name: str, study: str, drawn: Mapping[str, Drawing]) -> bool:
    stem = Path(name).stem
    return stem in (study, f"{study}-ranks") or stem in drawn


def _rows(book: Book, study: Study, edition: Edition, anchor: str) -> Iterator[Row]:
    """A row for each claim of the study."""
    for claim in study.claims:
        found = [j for column in book.judgements[study.name] for j in column if j.claim is claim]
        run: list[ledger.Verdict] = [j.verdict for j in found if j.reading != RAW and j.verdict != "not run"]
        lines = [_line(j) for j in found]
        several = [j for j in found if len(j.findings) > 1 and j.verdict != "not run"]
        parts = [f"{_said(j)}: {'; '.join(_finding(f) for f in j.findings)}" for j in several]
        yield Row(
            study.title,
            edition.how,
            anchor,
            claim.text,
            claim.where,
            min(run or ["not run"], key=ORDER.index),
            lines,
            parts,
        )


def _said(judgement: ledger.Judgement) -> str:
    return tables.spoken(judgement.seeds) + (", raw ω" if judgement.reading == RAW else "")


def _line(judgement: ledger.Judgement) -> dict[str, str]:
    decisive = judgement.decisive
    ran = judgement.verdict != "not run"
    return {
        "seeds": _said(judgement),
        "verdict": judgement.verdict,
        "ours": _finding(decisive) if ran else "",
        "paper": "" if decisive.paper != decisive.paper else tables.number(decisive.paper),
    }


def _finding(finding: ledger.Finding) -> str:
    if finding.low != finding.low:
        return _signed(finding.ours)
    return f"{_signed(finding.ours)} [{_signed(finding.low)}, {_signed(finding.high)}]"


def _signed(value: float) -> str:
    return tables.number(value).replace("-", "−")


def _section(
    book: Book, study: Study, edition: Edition, anchor: str, drawn: Mapping[str, Drawing], gathered: Gathered
) -> Section:
    frame, rows = book.frames[study.name], book.runs[study.name]
    seeds = sorted({int(seed) for seed in frame["seed"]})
    shown = set(zip(rows["method"], rows["condition"], rows["seed"], strict=True))
    cells = [
        cell for cell in edition.cells.get(study.name, ()) if (cell.method, cell.condition.key, cell.run.seed) in shown
    ]
    found = len({cell.run.key for cell in cells}) or len(rows)
    facts = [f"{found} runs", tables.spoken(seeds)]
    if edition.device:
        facts.append(edition.device)
    if missing := edition.left.get(study.name):
        facts.append(f"{missing} of its grid missing")
    agreement = ledger.agreement(study, frame)
    return Section(
        study.name,
        anchor,
        study.title,
        study.question,
        edition.how,
        found,
        facts,
        "",
        _tables(book, study),
        [agreement] if agreement else [],
        [_plotted(name, drawing) for name, drawing in drawn.items()],
        list(_strips(study, cells, gathered)),
        _trained(cells, gathered),
    )


def _tables(book: Book, study: Study) -> list[Table]:
    frame, found = book.frames[study.name], list[Table]()
    if study.layout == "ranks" and (rankings := ranks.rankings(study, frame)):
        return [_ranks(ranking) for ranking in rankings]
    for seeds in book.sets[study.name]:
        for grid in tables.grids(study, tables.entries(study, frame, seeds)):
            ours, theirs = tables.standings(grid), tables.standings(grid, paper=True)
            rows = [
                (method, [_cell(*three) for three in zip(entries, ours[method], theirs[method], strict=True)])
                for method, entries in grid.rows.items()
            ]
            found.append(Table(tables.caption(study, grid, seeds), grid.heads, rows))
    return found


def _cell(entry: tables.Entry, ours: Standing, theirs: Standing) -> dict[str, Any]:
    return {
        "text": _minus(entry.ours()), "mark": ours, "paper": _minus(entry.paper()), "paper_mark": theirs,
        "differs": not entry.agrees,
    }  # fmt: skip


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _plain(text: str, mark: Standing = "") -> dict[str, Any]:
    return {"text": text, "mark": mark, "paper": "", "paper_mark": "", "differs": False}


def _ranks(ranking: ranks.Ranking) -> Table:
    means = ranking.scores.mean()
    marks: list[Standing] = ["best", "second", *[""] * len(ranking.ranks)]  # type: ignore[list-item]
    rows = [
        (str(method), [_plain(f"{value:.2f}", mark), _plain(f"{means[method]:.3f}")])
        for (method, value), mark in zip(ranking.ranks.items(), marks, strict=False)
    ]
    return Table(f"{ranking.part} (Friedman p = {ranking.p:.2g})", ["average rank", "mean score"], rows)


def _charts(book: Book, edition: Edition) -> list[Table]:
    """The paper's table on the bounded chart."""
    found: pd.DataFrame = saturation.rows(edition.studies, book.frames)
    if not len(found):
        return []
    rows = [
        (texts[0], [_plain(text) for text in texts[1:]])
        for _, row in found.iterrows()
        if (texts := saturation.texts(row))
    ]
    how = f" ({edition.how})" if edition.how else ""
    return [Table(f"How near BPGS comes to the edge of its chart{how}", list(saturation.HEADS[1:]), rows)]


def _plotted(name: str, drawing: Drawing) -> Plotted:
    return Plotted(name, drawing.title, drawing.says, plots(drawing), drawing.columns, drawing.labels())


def _strips(study: Study, cells: Sequence[Cell], gathered: Gathered) -> Iterator[Strip]:
    """For each table of a study: what is true, where that is here, and each method's predictions at its first seed."""
    for condition in study.conditions:
        sheets: dict[str, tuple[str, tuple[str, ...], str]] = {}
        for cell in cells:
            if cell.condition != condition or cell.method in sheets:
                continue
            found = gathered.runs[cell.run.key]
            predicted, truth = found.picture(PREDICTED), found.picture(TRUTH)
            if predicted is None:
                continue
            if truth is not None:  # data that may not be handed on are left out of published runs
                sheets.setdefault("", ("the image, and what is true of it", COLUMNS[TRUTH], _embedded(truth)))
            name = f"{cell.method}, seed {cell.run.seed}"
            sheets[cell.method] = (name, COLUMNS[PREDICTED], _embedded(predicted))
        if sheets:
            truth_first = sorted(sheets.items(), key=lambda sheet: sheet[0] != "")
            yield Strip(condition.part or condition.key, [sheet for _, sheet in truth_first])


def _embedded(picture: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(picture).decode()}"


def _trained(cells: Sequence[Cell], gathered: Gathered) -> list[Trained]:
    groups: dict[tuple[str, str, str], Trained] = {}
    for cell in cells:
        rate = f"{cell.run.network_lr:g}"
        group = groups.setdefault(
            (cell.method, cell.condition.key, rate),
            Trained(cell.method, cell.condition.head or cell.condition.key, _options(cell.run), []),
        )
        found = gathered.runs[cell.run.key]
        made, score = found.circumstances, found.result.get("macro")
        value = score if score is not None else found.result["best"]["value"]
        group.runs.append(
            {
                "seed": str(cell.run.seed),
                "score": tables.number(float("nan") if value is None else value),
                "epochs": str(found.result.get("epochs", "–")),
                "device": str(made.get("machine", cell.run.device)),
                "time": f"{made['seconds']} s for {made.get('runs', 1)}" if "seconds" in made else "–",
                "made": str(made.get("finished", "–")),
                "versions": ", ".join(
                    f"{name} {made[name]}" for name in ("counterpoise", "torch", "python") if name in made
                ),
                "folder": str(found.folder),
            }
        )
    return list(groups.values())


def _options(run: Run) -> dict[str, str]:
    """Everything that decides a run's numbers but its seed."""
    return {
        "data": _named(run.data.name, run.data.kwargs),
        "network": _named(run.model.name, run.model.kwargs),
        "method": _recipe(run.recipe),
        "schedule": _listed(asdict(run.schedule)),
    }


def _recipe(recipe: Recipe) -> str:
    usual = Recipe(recipe.name)
    own = {
        k: v for k, v in vars(recipe).items() if k not in ("name", "options", "weighting") and v != getattr(usual, k)
    }
    text = _named(recipe.name, recipe.kwargs | own)
    return f"{text} after {_recipe(recipe.weighting)}" if recipe.weighting else text


def _named(name: str, options: Mapping[str, Any]) -> str:
    return f"{name} ({_listed(options)})" if options else name


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in options.items()
    )
