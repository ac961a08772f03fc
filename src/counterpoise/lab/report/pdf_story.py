"""Collects the parts of the PDF report and numbers its sections, tables and figures."""

from reportlab.lib.styles import ParagraphStyle
from reportlab.platypus import CondPageBreak, Flowable, KeepTogether, NextPageTemplate, PageBreak, Paragraph

from .html_sections import HtmlTable
from .pdf_document import HEIGHT, LANDSCAPE, PORTRAIT, WIDTHS, Heading
from .pdf_figures import FigureSlot
from .pdf_tables import score_tables
from .pdf_text import BODY, FIGURE_CAPTION, TABLE_CAPTION, markup, paragraph

MAX_ROWS_TOGETHER = 16  # longer tables are split where a page ends
LEAST_SPACE = 130.0  # below the start of a table that is split
SPACE_BELOW_SECTION, SPACE_BELOW_SUBSECTION = 220.0, 110.0  # otherwise it starts on the next page
MAX_FIGURE_HEIGHT = 0.86 * HEIGHT


class Story:
    """The content of the document in its order.

    Attributes:
        parts: All parts.
        slots: The places of figures.
    """

    def __init__(self) -> None:
        self.parts: list[Flowable] = []
        self.slots: list[FigureSlot] = []
        self.format = PORTRAIT
        self.sections = 0
        self.appendices = 0
        self.tables = 0
        self.figures = 0

    def add(self, *parts: Flowable) -> None:
        self.parts += parts

    def heading(self, text: str, anchor: str, *, appendix: bool = False) -> None:
        """Start a numbered section, an appendix on a new page."""
        self.turn(PORTRAIT)
        if appendix:
            self.appendices += 1
            number = chr(ord("A") + self.appendices - 1)
            self.add(PageBreak())
        else:
            self.sections += 1
            number = str(self.sections)
        self.add(CondPageBreak(SPACE_BELOW_SECTION), Heading(f"{number}\N{EN SPACE}{text}", anchor))

    def subheading(self, text: str, anchor: str) -> None:
        self.turn(PORTRAIT)
        self.add(CondPageBreak(SPACE_BELOW_SUBSECTION), Heading(text, anchor, 1))

    def text(self, text: str, style: ParagraphStyle = BODY) -> None:
        """Add a paragraph of plain text."""
        self.turn(PORTRAIT)
        self.add(paragraph(text, style))

    def table(self, table: HtmlTable) -> None:
        """Add a table with its caption above."""
        self.tables += 1
        parts, turned = score_tables(table, WIDTHS[PORTRAIT], WIDTHS[LANDSCAPE])
        self.turn(LANDSCAPE if turned else PORTRAIT)
        for place, part in enumerate(parts):
            note = "" if len(parts) == 1 else f" (part {place + 1} of {len(parts)})"
            self.captioned_table(_caption("Table", self.tables, f"{table.caption}{note}"), part, len(table.rows))

    def captioned_table(self, caption: str, table: Flowable, rows: int) -> None:
        """Add a caption and a table, on one page if it is short."""
        head = Paragraph(caption, TABLE_CAPTION)
        if rows <= MAX_ROWS_TOGETHER:
            self.add(KeepTogether([head, table]))
        else:
            self.add(CondPageBreak(LEAST_SPACE), head, table)

    def figure(self, content: bytes, caption: str) -> None:
        """Add a figure from a PDF file, with its caption below."""
        self.turn(PORTRAIT)
        slot = FigureSlot(content, self._figure_caption(caption), WIDTHS[PORTRAIT], MAX_FIGURE_HEIGHT)
        self.slots.append(slot)
        self.add(slot)

    def pictures(self, table: Flowable, caption: str, extra: str = "") -> None:
        """Add a table of pictures with a caption below; `extra` is markup that follows the caption."""
        self.turn(PORTRAIT)
        self.add(KeepTogether([table, self._figure_caption(caption, extra)]))

    def _figure_caption(self, text: str, extra: str = "") -> Paragraph:
        self.figures += 1
        return Paragraph(_caption("Figure", self.figures, text) + extra, FIGURE_CAPTION)

    def turn(self, page_format: str) -> None:
        """Continue on a page of this format."""
        if page_format != self.format:
            self.add(NextPageTemplate(page_format), PageBreak())
            self.format = page_format


def _caption(kind: str, number: int, text: str) -> str:
    first = text[:1].upper() if text[:1].isascii() else text[:1]  # keeps Greek letters
    return f"<b>{kind} {number}.</b> {markup(first + text[1:])}{'' if text.endswith('.') else '.'}"
