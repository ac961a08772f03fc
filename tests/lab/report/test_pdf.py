"""The report as PDF: its content is that of the page, and nothing runs out of a page."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import app
from helpers.fake_runs import fake_run
from PIL import Image
from pypdf import PageObject, PdfReader
from reportlab.pdfgen.canvas import Canvas
from typer.testing import CliRunner

from counterpoise.lab.data.visualisation import COLUMNS, PREDICTED
from counterpoise.lab.engine import Store
from counterpoise.lab.report.card_pictures import CardPicture
from counterpoise.lab.report.figures.spec import FigureSpec
from counterpoise.lab.report.html import Page
from counterpoise.lab.report.html_sections import (
    HtmlFigure,
    HtmlTable,
    PredictionSheet,
    PredictionStrip,
    StudySection,
)
from counterpoise.lab.report.leaderboard_page import LeaderboardSection, WorldCard, WorldTable
from counterpoise.lab.report.pdf import render_pdf, write_pdf
from counterpoise.lab.report.pdf_document import LANDSCAPE, PORTRAIT, WIDTHS
from counterpoise.lab.report.pdf_tables import SIZES, score_tables, table_layout
from counterpoise.lab.report.pdf_text import REGULAR, SYMBOLS, markup
from counterpoise.lab.report.ranks import PrintedTable
from counterpoise.lab.report.run_collection import CollectedRuns, Problem
from counterpoise.lab.studies import STUDIES

A4 = (595.28, 841.89)
SIZE = (500, 300)  # of the figures in points
PLACED = re.compile(rb"q ([\d.]+) 0 0 [\d.]+ ([-\d.]+) ([-\d.]+) cm /Figure(\d+) Do Q")


def write_small_figures(spec: FigureSpec, path: Path) -> None:
    """Replaces matplotlib, which takes a second per figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.png").touch()
    canvas = Canvas(str(path.with_name(f"{path.name}.pdf")), SIZE)
    canvas.drawString(20, 20, f"drawing of {path.name}")
    canvas.save()


def text_of(pages: list[PageObject]) -> str:
    return " ".join(" ".join(page.extract_text().split()) for page in pages)


def boxes(page: PageObject) -> list[tuple[float, float, float, float]]:
    """Return the left, bottom, right and top edge of each figure on a page."""
    contents = page.get_contents()
    assert contents is not None
    found = [[float(number) for number in match[:3]] for match in PLACED.findall(contents.get_data())]
    return [(x, y, x + SIZE[0] * scale, y + SIZE[1] * scale) for scale, x, y in found]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page and the PDF of a study of the paper."""
    root = tmp_path_factory.mktemp("pdf")
    store, study = Store(root / "runs"), STUDIES["normalisation"]
    for cell in study.grid(seeds=study.seeds):
        store.finish(cell.run, *fake_run(cell.run, ("a", "b")), {})
        circumstances = {"finished": "2026-03-04T10:00", "counterpoise": "0.7", "torch": "2.9", "machine": "<b>CPU"}
        store.write_circumstances(cell.run, circumstances)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", write_small_figures)
        call = CliRunner().invoke(app, ["report", str(root / "runs"), str(root / "<i>none"), "-o", str(root), "--pdf"])
    assert call.exit_code == 0, call.output
    assert "report.pdf" in call.output
    assert '<a href="report.pdf">PDF</a>' in (root / "index.html").read_text()
    return root


@pytest.fixture(scope="module")
def pages(made: Path) -> list[PageObject]:
    return list(PdfReader(made / "report.pdf").pages)


def test_document_has_all_values_claims_and_sources(made: Path, pages: list[PageObject]) -> None:
    text, study = text_of(pages), STUDIES["normalisation"]
    assert study.question in text
    assert "Runs finished 2026-03-04, counterpoise 0.7, torch 2.9" in text
    for claim in study.claims:
        assert claim.text.split(",")[0] in text
    values = re.findall(r"\d\.\d{3} ± \d\.\d{3}", (made / "tables" / "normalisation.md").read_text())
    assert len(values) > 20
    assert all(value in text for value in values)
    assert "<i>none" in text
    assert "<b>CPU" in text


def test_pages_are_numbered_a4_with_an_outline(made: Path, pages: list[PageObject]) -> None:
    for number, page in enumerate(pages, 1):
        assert [float(page.mediabox.width), float(page.mediabox.height)] == pytest.approx(A4, abs=0.1)
        assert re.search(rf"\b{number}\b", page.extract_text())
    reader = PdfReader(made / "report.pdf")
    titles = [" ".join(str(entry.title).split()) for entry in reader.outline if not isinstance(entry, list)]
    assert titles == ["1 Normalisation ablation", "A Claims and verdicts", "B Runs and sources"]
    assert reader.metadata is not None
    assert reader.metadata.creation_date is None


def test_figures_are_embedded_within_the_margins(made: Path, pages: list[PageObject]) -> None:
    placed = [box for page in pages for box in boxes(page)]
    assert len(placed) == len(list(made.rglob("figures/*.pdf"))) > 2
    for left, bottom, right, top in placed:
        assert 40 < left < right < A4[0] - 40
        assert 40 < bottom < top < A4[1] - 40
    assert "drawing of normalisation" in text_of(pages)


def make_section(tables: list[HtmlTable], **content: Any) -> StudySection:
    facts = ["2 runs", "seed 1"]
    parts = {"notes": [], "figures": [], **content}
    return StudySection("s", "s", "Title & more", "What? <b>", "", 2, facts, "", tables, **parts)


def make_table(rows: int, columns: int, text: str = "0.123 ± 0.004", name: str = "method", **cell: Any) -> HtmlTable:
    content = {"text": text, "mark": "", "paper": "", "paper_mark": "", "differs": False} | cell
    heads = [f"metric {i} ↑" for i in range(columns)]
    return HtmlTable("caption", heads, [(f"{name} {i}", [content] * columns) for i in range(rows)])


def render(page: Page, folder: Path, collected: CollectedRuns | None = None) -> list[PageObject]:
    content = render_pdf(page, CollectedRuns(["runs"]) if collected is None else collected, folder)
    return list(PdfReader(io.BytesIO(content)).pages)


def test_contents_are_two_columns_with_the_page_of_each_section(tmp_path: Path) -> None:
    sections = [replace(make_section([]), study=f"s{i}", anchor=f"s{i}", title=f"Study {i}") for i in range(1, 39)]
    pages = render(Page(sections), tmp_path)
    entries = re.findall(r"\. (\d+)\s+(\d+) Study (\d+)", pages[0].extract_text())
    numbers = [int(number) for _, number, _ in entries]
    assert sorted(numbers) == list(range(1, 39))
    assert numbers[:4] == [1, 21, 2, 22]  # side by side
    for page, number, study in entries:
        assert number == study
        assert re.search(rf"{number}\s+Study {study}\n", pages[int(page) - 1].extract_text())


@pytest.mark.parametrize(
    ("columns", "expected", "turned"), [(4, [4], False), (7, [7], False), (11, [11], True), (40, [8] * 5, False)]
)
def test_wide_tables_are_scaled_turned_or_split(columns: int, expected: list[int], turned: bool) -> None:
    table = make_table(3, columns, paper="0.120 ± 0.003", differs=True, mark="best")
    parts, landscape = score_tables(table, WIDTHS[PORTRAIT], WIDTHS[LANDSCAPE])
    assert landscape is turned
    assert [part._ncols - 1 for part in parts] == expected
    for part in parts:
        width, _ = part.wrap(0, 0)
        assert width <= WIDTHS[LANDSCAPE if turned else PORTRAIT]


def test_long_texts_are_wrapped_before_the_page_is_turned() -> None:
    table = make_table(3, 5, text="one backward pass, and one per loss in some steps")
    assert table_layout(table, SIZES[-1]).total > WIDTHS[PORTRAIT]
    (part,), turned = score_tables(table, WIDTHS[PORTRAIT], WIDTHS[LANDSCAPE])
    assert not turned
    assert part.wrap(0, 0)[0] <= WIDTHS[PORTRAIT]


def test_a_single_wide_column_is_not_split() -> None:
    parts, _ = score_tables(make_table(3, 1, text="0" * 300), WIDTHS[PORTRAIT], WIDTHS[LANDSCAPE])
    assert len(parts) == 1


def test_long_and_wide_tables_repeat_their_head_and_turn_the_page(tmp_path: Path) -> None:
    section = make_section([make_table(120, 3), make_table(2, 12), make_table(2, 12, name="other"), make_table(2, 2)])
    pages = render(Page([section]), tmp_path)
    wide = [page.mediabox.width > page.mediabox.height for page in pages]
    assert wide.count(True) == 1  # both wide tables are on one page
    long = [page for page in pages[: wide.index(True)] if "method" in page.extract_text()]
    assert len(long) >= 3
    assert all("metric 2" in page.extract_text() for page in long)
    rows = re.findall(r"method (\d+) 0\.123", text_of(long))
    assert rows == [str(row) for row in range(120)]


def test_identical_tables_of_a_study_are_shown_once(tmp_path: Path) -> None:
    text = text_of(render(Page([make_section([make_table(2, 2), make_table(2, 2)])]), tmp_path))
    assert "Table 1" in text
    assert "Table 2" not in text


def test_leaderboard_has_the_tables_of_the_page(tmp_path: Path) -> None:
    scores = PrintedTable(["method", "mean rank"], [["LRA", "1.5"]], "Physics")
    card = WorldCard("physics", "Physics", "Equations", "", [], (), CardPicture(""), {})
    complete = WorldTable("physics", "Physics", "Equations", scores, (), ())
    against = PrintedTable(["world", "difference"], [["Physics", "error 24 × higher"]], "BPGS against Kendall")
    section = LeaderboardSection(cards=[card], tables=[complete], head_to_head=against)
    page = Page([make_section([])], leaderboard=section)
    text = text_of(render(page, tmp_path))
    assert "Table 1. BPGS against Kendall" in text
    assert "Physics error 24 × higher" in text
    assert "Table 2. Physics" in text


def test_tall_figures_and_pictures_stay_on_their_page(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    canvas = Canvas(str(tmp_path / "figures" / "tall.pdf"), (500, 3000))
    canvas.line(0, 0, 500, 3000)
    canvas.save()
    encoded = io.BytesIO()
    Image.new("RGB", (30, 40), "red").save(encoded, "WEBP")
    url = f"data:image/webp;base64,{base64.b64encode(encoded.getvalue()).decode()}"
    sheets = [PredictionSheet(f"method {i}", COLUMNS[PREDICTED], url + "=" * i) for i in range(8)]
    figure = HtmlFigure("tall", "", "a tall figure", [], 1, {})
    section = make_section([], figures=[figure], strips=[PredictionStrip("main", sheets)])
    pages = render(Page([section]), tmp_path)
    scale = float(PLACED.findall(b"".join(page.get_contents().get_data() for page in pages))[0][0])  # type: ignore[union-attr]
    assert 3000 * scale < A4[1] - 100
    text = text_of(pages)
    assert all(f"method {i}" in text for i in range(8))
    assert "Figure 3. Four held-out images" in text


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    page, collected = Page([make_section([make_table(3, 3)])]), CollectedRuns(["runs"])
    assert render_pdf(page, collected, tmp_path) == render_pdf(page, collected, tmp_path)


def test_failure_keeps_the_previous_document(tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_text("previous")
    section = make_section([], figures=[HtmlFigure("missing", "", "", [], 1, {})])
    with pytest.raises(FileNotFoundError):
        write_pdf(Page([section]), CollectedRuns(), tmp_path)
    assert (tmp_path / "report.pdf").read_text() == "previous"


def test_unusual_characters_are_drawn_in_another_font_or_replaced(tmp_path: Path) -> None:
    assert markup("→ ± × ℓ θ Δ ↑ ↓ − ½ R² ≤") == "→ ± × ℓ θ Δ ↑ ↓ − ½ R² ≤"
    assert markup("10⁹ & -3") == f'10<font name="{SYMBOLS}">⁹</font> &amp; −3'
    assert markup("→", "Serif-Italic") == f'<font name="{REGULAR}">→</font>'
    assert markup("a\x00b\udcff\nc") == "a?b? c"
    collected = CollectedRuns(["a\udcff"], problems=[Problem("x" * 5000, "damaged", "中\x07<")])
    section = make_section([make_table(1, 2, text="⁹ <&> \x01", name="ʘ" * 60)])
    assert "could not be used" in text_of(render(Page([section]), tmp_path, collected))


def test_missing_package_is_named_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "reportlab" else object())
    call = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "out"), "--pdf"])
    assert call.exit_code != 0
    assert "the PDF needs reportlab: pip install 'counterpoise[pdf]'" in " ".join(call.output.split())
    assert not (tmp_path / "out").exists()
