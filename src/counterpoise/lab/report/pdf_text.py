"""Fonts, paragraph styles and markup of the PDF report."""

import re
import unicodedata
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import matplotlib as mpl
from reportlab.lib.enums import TA_CENTER, TA_JUSTIFY
from reportlab.lib.styles import ParagraphStyle
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import Paragraph

from .ledger import Verdict

REGULAR, BOLD, ITALIC, BOLD_ITALIC, SYMBOLS = "Serif", "Serif-Bold", "Serif-Italic", "Serif-BoldItalic", "Symbols"
FILES = {
    REGULAR: "STIXGeneral.ttf", BOLD: "STIXGeneralBol.ttf", ITALIC: "STIXGeneralItalic.ttf",
    BOLD_ITALIC: "STIXGeneralBolIta.ttf", SYMBOLS: "DejaVuSans.ttf",
}  # fmt: skip
"""Fonts that matplotlib installs: a Times with mathematical symbols, and one for characters that it lacks."""

HYPHEN_MINUS = re.compile(r"(?<!\w)-(?=\d)")  # of a negative number
GREY, RED = "#666666", "#a61b1b"
VERDICT_COLOURS: dict[Verdict, str] = {
    "holds": "#1a6b34", "does not hold": RED, "undecided": "#8a5a00", "not run": GREY,
}  # fmt: skip
VERDICT_MARKS: dict[Verdict, str] = {"holds": "✓", "does not hold": "✗", "undecided": "?", "not run": "–"}


@cache
def register_fonts() -> None:
    """Make the fonts known to reportlab, once in a process."""
    folder = Path(mpl.get_data_path(), "fonts", "ttf")
    for name, file in FILES.items():
        pdfmetrics.registerFont(TTFont(name, str(folder / file)))
    pdfmetrics.registerFontFamily(REGULAR, normal=REGULAR, bold=BOLD, italic=ITALIC, boldItalic=BOLD_ITALIC)


def paragraph_style(name: str, **options: Any) -> ParagraphStyle:
    return ParagraphStyle(name, **({"fontName": REGULAR, "fontSize": 10, "leading": 12.5, "spaceAfter": 5} | options))


BODY = paragraph_style("body", alignment=TA_JUSTIFY)
ITEM = paragraph_style("item", leftIndent=12, bulletIndent=2, spaceAfter=2.5, fontSize=9.5, leading=11.8)
TITLE = paragraph_style("title", fontName=BOLD, fontSize=17, leading=20, alignment=TA_CENTER, spaceAfter=5)
BYLINE = paragraph_style("byline", alignment=TA_CENTER, fontSize=10, leading=13, spaceAfter=1)
ABSTRACT_TITLE = paragraph_style("abstract title", fontName=BOLD, alignment=TA_CENTER, spaceBefore=6, spaceAfter=3)
ABSTRACT = paragraph_style(
    "abstract", alignment=TA_JUSTIFY, leftIndent=12, rightIndent=12, fontSize=9.2, leading=11, spaceAfter=3
)
SECTION = paragraph_style("section", fontName=BOLD, fontSize=13, leading=16, spaceBefore=16, spaceAfter=5)
SUBSECTION = paragraph_style("subsection", fontName=BOLD, fontSize=10.5, leading=13, spaceBefore=9, spaceAfter=4)
CONTENTS_TITLE = paragraph_style("contents title", fontName=BOLD, fontSize=11, leading=14, spaceBefore=4, spaceAfter=3)
CONTENTS = paragraph_style("contents", fontSize=8.2, leading=9.3, spaceAfter=0, rightIndent=16)
QUESTION = paragraph_style("question", fontName=ITALIC)
FACTS = paragraph_style("facts", fontSize=9, leading=11, textColor=GREY)
PICTURE_NAME = paragraph_style("picture name", fontSize=8, leading=9.5, spaceAfter=0)
NOTE = paragraph_style("note", fontSize=8.5, leading=10.5, alignment=TA_JUSTIFY)
TABLE_CAPTION = paragraph_style("table caption", fontSize=9, leading=11, alignment=TA_CENTER, spaceBefore=8)
FIGURE_CAPTION = paragraph_style("figure caption", fontSize=9, leading=11, alignment=TA_CENTER, spaceAfter=8)


def markup(text: str, font: str = REGULAR) -> str:
    """Return text as the markup of a paragraph, with characters that the font lacks in another font."""
    parts = []
    for name, part in _runs(text, font):
        parts.append(escape(part) if name == font else f'<font name="{name}">{escape(part)}</font>')
    return "".join(parts)


def paragraph(text: str, style: ParagraphStyle) -> Paragraph:
    """Return a paragraph of plain text."""
    return Paragraph(markup(text, style.fontName), style)


def coloured(markup_text: str, colour: str) -> str:
    return f'<font color="{colour}">{markup_text}</font>'


def text_width(text: str, font: str, size: float) -> float:
    """Return the width of text in points."""
    return float(sum(pdfmetrics.stringWidth(part, name, size) for name, part in _runs(text, font)))


def is_covered(text: str, font: str) -> bool:
    """Return whether a font has all characters of the text."""
    return all(name == font for name, _ in _runs(text, font))


def _runs(text: str, font: str) -> list[tuple[str, str]]:
    """Split text into runs of one font. Control characters and halves of surrogate pairs become question marks."""
    text = HYPHEN_MINUS.sub("−", text.replace("\n", " "))
    printable = ("?" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)
    return [(name, "".join(run)) for name, run in groupby(printable, lambda c: _font_of(c, font))]


@cache
def _font_of(character: str, font: str) -> str:
    register_fonts()
    candidates = (font, REGULAR, SYMBOLS)
    return next((n for n in candidates if ord(character) in pdfmetrics.getFont(n).face.charToGlyph), SYMBOLS)
