"""Tables of the PDF report: ruled as in a paper, and scaled, turned or split where they are wide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from reportlab.lib.enums import TA_LEFT, TA_RIGHT
from reportlab.platypus import Paragraph, Table

from .html_sections import HtmlTable
from .pdf_text import BOLD, GREY, ITALIC, RED, REGULAR, coloured, is_covered, markup, paragraph_style, text_width

SIZES = (9.0, 8.5, 8.0, 7.5, 7.0)
"""Type sizes, from the default to the smallest to which a wide table is scaled."""
PAPER_SIZE = 0.86  # of the paper's values, relative to ours
PADDING = 4.0  # on both sides of a column
MAX_NAME, MAX_HEAD = 19.0, 10.0  # widths in units of the type size; longer texts are wrapped
MAX_NARROW_TEXT, MAX_TEXT, MAX_WIDE_TEXT = 9.0, 13.0, 22.0
TEXT_LETTERS = 16  # a column with a cell of more letters holds text
DIFFERS = "≠ "

Cell = dict[str, Any]
Command = tuple[Any, ...]


@dataclass(frozen=True)
class Layout:
    """The type size and the widths of all columns, that of names first."""

    size: float
    widths: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.widths)


def score_tables(table: HtmlTable, portrait: float, landscape: float) -> tuple[list[Table], bool]:
    """Return a table, or several with some of its columns each, and whether they need pages in landscape format.

    Args:
        table: The table of the page.
        portrait: Width of the text on a page in portrait format, in points.
        landscape: Width of the text on a page in landscape format.
    """
    layouts = [table_layout(table, size, MAX_WIDE_TEXT) for size in SIZES[:3]]
    layouts += [table_layout(table, size) for size in SIZES]
    layouts += [table_layout(table, size, MAX_NARROW_TEXT) for size in SIZES]
    for available, turned in ((portrait, False), (landscape, True)):
        fitting = next((layout for layout in layouts if layout.total <= available), None)
        if fitting is not None:
            return [_score_table(table, fitting)], turned
    for count in range(1, len(table.heads) + 1):
        parts = _split(table, count)
        layouts = [table_layout(part, SIZES[-1]) for part in parts]
        if all(layout.total <= portrait for layout in layouts):
            break
    return list(map(_score_table, parts, layouts)), False


def _split(table: HtmlTable, count: int) -> list[HtmlTable]:
    """Return tables with up to 1 / count of the columns each."""
    width = math.ceil(len(table.heads) / count)
    slices = [slice(start, start + width) for start in range(0, len(table.heads), width)]
    return [
        HtmlTable(table.caption, table.heads[part], [(name, cells[part]) for name, cells in table.rows])
        for part in slices
    ]


def table_layout(table: HtmlTable, size: float, max_text: float = MAX_TEXT) -> Layout:
    """Return the layout of a table at this type size. Heads, names and texts are wrapped where they are long."""
    names = max((text_width(name, REGULAR, size) for name, _ in table.rows), default=0.0)
    widths = [min(names, MAX_NAME * size) + 2 * PADDING + 1]
    for column, head in enumerate(table.heads):
        cells = [cells[column] for _, cells in table.rows]
        body = max((_cell_width(cell, size) for cell in cells), default=0.0)
        longest_word = max((text_width(word, REGULAR, size) for word in _head_words(head)), default=0.0)
        if _is_text(cells):
            body = min(body, max_text * size)
        full = min(text_width(head, REGULAR, size), MAX_HEAD * size)
        widths.append(max(body, longest_word, full if size == SIZES[0] else 0.0) + 2 * PADDING + 1)
    return Layout(size, tuple(widths))


def _cell_width(cell: Cell, size: float) -> float:
    paper = (DIFFERS if cell["differs"] else "") + cell["paper"]
    ours = text_width(cell["text"], BOLD if cell["mark"] == "best" else REGULAR, size)
    return max(ours, text_width(paper, BOLD, size * PAPER_SIZE) if cell["paper"] else 0.0)


def _head_words(head: str) -> list[str]:
    return head.replace(" ↑", "\N{NO-BREAK SPACE}↑").replace(" ↓", "\N{NO-BREAK SPACE}↓").split(" ")


def _is_text(cells: Sequence[Cell]) -> bool:
    return any(sum(c.isalpha() for c in cell["text"]) > TEXT_LETTERS for cell in cells)


def _score_table(table: HtmlTable, layout: Layout) -> Table:
    """Return a table with the paper's values in a row below ours."""
    texts = [_is_text([cells[column] for _, cells in table.rows]) for column in range(len(table.heads))]
    aligns = [TA_LEFT if text else TA_RIGHT for text in texts]
    heads = [
        _set(" ".join(_head_words(head)), layout.size, align) for head, align in zip(table.heads, aligns, strict=True)
    ]
    data: list[list[Any]] = [["", *heads]]
    commands = list[Command]()
    for name, cells in table.rows:
        wrapped = text_width(name, REGULAR, layout.size) > MAX_NAME * layout.size or not is_covered(name, REGULAR)
        row: list[Any] = [_set(name, layout.size, TA_LEFT) if wrapped else name]
        for column, cell in enumerate(cells, 1):
            row.append(_content(cell["text"], cell["mark"], layout.size, aligns[column - 1], wrap=texts[column - 1]))
            if cell["mark"] == "best":
                commands.append(("FONTNAME", (column, len(data)), (column, len(data)), BOLD))
        data.append(row)
        if any(cell["paper"] for cell in cells):
            commands += _paper_row_commands(len(data), layout.size)
            data.append(["\N{EM SPACE}paper", *(_paper_content(cell, layout.size) for cell in cells)])
    commands += [("ALIGN", (i, 0), (i, -1), "LEFT" if text else "RIGHT") for i, text in enumerate(texts, 1)]
    return ruled_table(data, layout.widths, layout.size, commands)


def _content(text: str, mark: str, size: float, align: int, *, wrap: bool) -> Any:
    """Return a cell: a string where it can be, which is set faster than a paragraph."""
    if mark == "second":
        return Paragraph(f"<u>{markup(text)}</u>", _cell_style(size, align))
    return _set(text, size, align) if wrap or not is_covered(text, REGULAR) else text


def _paper_content(cell: Cell, size: float) -> Any:
    text = markup(cell["paper"])
    if not cell["paper"] or (not cell["differs"] and not cell["paper_mark"]):
        return cell["paper"]
    text = {"best": f"<b>{text}</b>", "second": f"<u>{text}</u>"}.get(cell["paper_mark"], text)
    colour = RED if cell["differs"] else GREY
    return Paragraph(
        coloured((DIFFERS if cell["differs"] else "") + text, colour), _cell_style(size * PAPER_SIZE, TA_RIGHT)
    )


def _paper_row_commands(row: int, size: float) -> list[Command]:
    whole = ((0, row), (-1, row))
    return [
        ("FONTSIZE", *whole, size * PAPER_SIZE),
        ("LEADING", *whole, size * PAPER_SIZE + 1.5),
        ("TEXTCOLOR", *whole, GREY),
        ("FONTNAME", (0, row), (0, row), ITALIC),
        ("TOPPADDING", *whole, 0),
        ("BOTTOMPADDING", (0, row - 1), (-1, row - 1), 0),
        ("BOTTOMPADDING", *whole, 3),
        ("NOSPLIT", (0, row - 1), (-1, row)),
    ]


def ruled_table(
    data: Sequence[Sequence[Any]], widths: Sequence[float], size: float, commands: Sequence[Command] = ()
) -> Table:
    """Return a table with three rules whose head is repeated on each page."""
    style: list[Command] = [
        ("FONT", (0, 0), (-1, -1), REGULAR, size, size + 2),
        ("LEFTPADDING", (0, 0), (-1, -1), PADDING),
        ("RIGHTPADDING", (0, 0), (-1, -1), PADDING),
        ("TOPPADDING", (0, 0), (-1, -1), 1.2),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 1.2),
        ("BOTTOMPADDING", (0, 0), (-1, 0), 3),
        ("VALIGN", (0, 0), (-1, 0), "BOTTOM"),
        ("VALIGN", (0, 1), (-1, -1), "TOP"),
        ("LINEABOVE", (0, 0), (-1, 0), 0.9, "black"),
        ("LINEBELOW", (0, 0), (-1, 0), 0.5, "black"),
        ("LINEBELOW", (0, -1), (-1, -1), 0.9, "black"),
        ("LINEBELOW", (0, "splitlast"), (-1, "splitlast"), 0.5, "black"),
    ]
    return Table(
        [list(row) for row in data], list(widths), repeatRows=1, style=[*style, *commands], spaceBefore=2, spaceAfter=8
    )


def _set(text: str, size: float, align: int) -> Paragraph:
    return Paragraph(markup(text), _cell_style(size, align))


@cache
def _cell_style(size: float, align: int) -> Any:
    return paragraph_style("cell", fontSize=size, leading=size + 2, alignment=align, spaceAfter=0, splitLongWords=1)
