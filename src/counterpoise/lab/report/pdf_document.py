"""The document of the PDF report: page formats, headings with bookmarks, and running heads."""

import io
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from reportlab import rl_config
from reportlab.lib.pagesizes import A4
from reportlab.platypus import BaseDocTemplate, Flowable, Frame, PageTemplate, Paragraph, Table, TableStyle
from reportlab.platypus.tableofcontents import TableOfContents

from .pdf_text import CONTENTS, GREY, REGULAR, SECTION, SUBSECTION, markup, register_fonts, text_width

MARGIN, TOP, BOTTOM = 62.0, 64.0, 60.0
PORTRAIT, LANDSCAPE = "portrait", "landscape"
WIDTHS = {PORTRAIT: A4[0] - 2 * MARGIN, LANDSCAPE: A4[1] - 2 * MARGIN}
"""Widths of the text in points."""
HEIGHT = A4[1] - TOP - BOTTOM
"""Height of the text on a page in portrait format."""
COLUMN_GAP = 18.0  # between the columns of the contents


class Heading(Paragraph):  # type: ignore[misc]
    """A heading with a bookmark.

    Args:
        text: Plain text.
        anchor: Name of the bookmark, unique in the document.
        level: 0 for sections, 1 for subsections.
    """

    def __init__(self, text: str, anchor: str, level: int = 0) -> None:
        style = (SECTION, SUBSECTION)[level]
        super().__init__(markup(text, style.fontName), style)
        self.text, self.anchor, self.level = text, anchor, level


class ReportDocument(BaseDocTemplate):  # type: ignore[misc]
    """A document on A4 pages that numbers pages and collects headings for the outline and the contents.

    Args:
        title: Title for viewers and running heads.
        file: File that is written to.
    """

    def __init__(self, title: str, file: io.BytesIO) -> None:
        register_fonts()
        # An invariant document has neither a date nor a random identifier.
        super().__init__(file, pagesize=A4, title=title, author="counterpoise", lang="en-GB", invariant=1)
        self.section = ""
        for name, (width, height) in ((PORTRAIT, A4), (LANDSCAPE, (A4[1], A4[0]))):
            frame = Frame(MARGIN, BOTTOM, width - 2 * MARGIN, height - TOP - BOTTOM, 0, 0, 0, 0)
            self.addPageTemplates(PageTemplate(name, [frame], onPageEnd=self.draw_margins, pagesize=(width, height)))

    def beforeDocument(self) -> None:  # noqa: N802  # the name in reportlab
        self.section = ""

    def afterFlowable(self, flowable: Flowable) -> None:  # noqa: N802  # the name in reportlab
        if not isinstance(flowable, Heading):
            return
        self.canv.bookmarkPage(flowable.anchor)
        self.canv.addOutlineEntry(flowable.text, flowable.anchor, flowable.level, closed=True)
        if flowable.level == 0:
            self.section = flowable.text
            self.notify("TOCEntry", (0, markup(flowable.text), self.page, flowable.anchor))

    def draw_margins(self, canvas: Any, _: Any) -> None:
        """Draw the title and the section at the top of a page, and its number at the bottom."""
        width, height = canvas._pagesize
        canvas.saveState()
        canvas.setFillColor(GREY)
        canvas.setFont(REGULAR, 8.5)
        if self.page > 1:
            canvas.drawString(MARGIN, height - 42, self.title)
            room = width - 2 * MARGIN - text_width(self.title, REGULAR, 8.5) - 20
            canvas.drawRightString(width - MARGIN, height - 42, _shorten(self.section, room))
            canvas.setLineWidth(0.4)
            canvas.setStrokeColor(GREY)
            canvas.line(MARGIN, height - 47, width - MARGIN, height - 47)
        canvas.drawCentredString(width / 2, 34, str(self.page))
        canvas.restoreState()


def _shorten(text: str, width: float) -> str:
    """Shorten text in the font of running heads to a width."""
    if text_width(text, REGULAR, 8.5) <= width:
        return text
    while text and text_width(f"{text}…", REGULAR, 8.5) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


class Contents(TableOfContents):  # type: ignore[misc]
    """The table of contents in two columns, which fills itself while the document is built."""

    def __init__(self) -> None:
        tight = [(f"{side}PADDING", (0, 0), (-1, -1), 0) for side in ("LEFT", "RIGHT", "TOP", "BOTTOM")]
        style = TableStyle([*tight, ("VALIGN", (0, 0), (-1, -1), "TOP")])
        super().__init__(levelStyles=[CONTENTS], tableStyle=style, dotsMinLevel=0)

    def wrap(self, width: float, height: float) -> tuple[float, float]:
        column = (width - COLUMN_GAP) / 2
        super().wrap(column, height)
        inner: Table = self._table  # type: ignore[has-type]
        entries = [entry for (entry,) in inner._cellvalues]
        half = -(-len(entries) // 2)
        rows = [[left, "", right] for left, right in zip_longest(entries[:half], entries[half:], fillvalue="")]
        self._table = Table(rows, (column, COLUMN_GAP, column), style=self.tableStyle)
        self.width, self.height = self._table.wrapOn(self.canv, width, height)
        return self.width, self.height


def build_document(title: str, story: Sequence[Flowable]) -> bytes:
    """Lay out all pages, twice, because the contents need the page of each section."""
    headings = [part for part in story if isinstance(part, Heading) and part.level == 0]
    for contents in (part for part in story if isinstance(part, Contents)):
        for heading in headings:  # the contents have their final length from the start, which saves a third time
            contents.addEntry(0, markup(heading.text), 0, heading.anchor)
    file = io.BytesIO()
    encoded, rl_config.useA85 = rl_config.useA85, 0  # encoding streams as text takes a third of the time
    try:
        ReportDocument(title, file).multiBuild(list(story))
    finally:
        rl_config.useA85 = encoded
    return file.getvalue()
