"""Figures of the PDF report: the files that matplotlib wrote, as vector graphics, and pictures of predictions."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.backends.backend_pdf import FigureCanvasPdf
from PIL import Image
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, DecodedStreamObject, DictionaryObject, NameObject, StreamObject
from reportlab.platypus import Flowable, Paragraph, Table
from reportlab.platypus import Image as Picture

from .figures.render_matplotlib import render
from .figures.spec import FigureSpec
from .html_sections import PredictionSheet
from .pdf_text import PICTURE_NAME, paragraph

LEAST_SHRINK = 0.78
GAP, SPACE = 3.0, 11.0  # above the caption, and around the figure
MAX_FIGURE_INCHES, REFLOWED_WIDTH, MAX_REFLOWED_INCHES = 9.0, 7.2, 10.0
JPEG_QUALITY = 88
SHEETS_PER_ROW = 3


class FigureSlot(Flowable):  # type: ignore[misc]
    """The place of a figure, and its caption below. It shrinks a little to fit on the rest of a page.

    `embed_figures` draws the figure after all pages are laid out, because reportlab cannot read PDF.

    Args:
        content: The figure as a PDF file.
        caption: Its caption.
        max_width: Largest width in points.
        max_height: Largest height in points.
    """

    def __init__(self, content: bytes, caption: Paragraph, max_width: float, max_height: float) -> None:
        super().__init__()
        self.content, self.caption = content, caption
        box = PdfReader(io.BytesIO(content)).pages[0].mediabox
        self.size = float(box.width), float(box.height)
        self.full_scale = min(1.0, max_width / self.size[0], max_height / self.size[1])
        self.spaceBefore = self.spaceAfter = SPACE
        self.scale, self.page, self.x, self.y = self.full_scale, 0, 0.0, 0.0

    def wrap(self, width: float, height: float) -> tuple[float, float]:
        self.width, (_, self.below) = width, self.caption.wrap(width, height)
        fitting = min(self.full_scale, (height - self.below - GAP) / self.size[1])
        self.scale = fitting if fitting >= LEAST_SHRINK * self.full_scale else self.full_scale
        return width, self.size[1] * self.scale + GAP + self.below

    def draw(self) -> None:
        self.caption.drawOn(self.canv, 0, 0)
        left = (self.width - self.size[0] * self.scale) / 2
        self.page = self.canv.getPageNumber()
        self.x, self.y = self.canv.absolutePosition(left, self.below + GAP)


def reflow(spec: FigureSpec) -> FigureSpec:
    """Arrange the panels of a wide figure in two columns, or in two rows if all have the same names on the left.

    Its text stays legible on A4.
    """
    if spec.size[0] <= MAX_FIGURE_INCHES or spec.columns < 3:
        return spec
    names = bool(spec.panels[0].y.ticks) and all(panel.y == spec.panels[0].y for panel in spec.panels)
    columns = -(-len(spec.panels) // 2) if names else 2
    rows = -(-len(spec.panels) // columns)
    height = min(rows * spec.size[1] / len(spec.row_heights), MAX_REFLOWED_INCHES)
    return replace(spec, columns=columns, size=(REFLOWED_WIDTH, height), share_y=names)


def figure_content(spec: FigureSpec) -> bytes:
    """Return a figure as a PDF file."""
    content = io.BytesIO()
    canvas: Any = FigureCanvasPdf(render(spec))
    canvas.print_pdf(content, metadata={"CreationDate": None})
    return content.getvalue()


def embed_figures(content: bytes, slots: Iterable[FigureSlot], metadata: Mapping[str, str]) -> bytes:
    """Draw the figures in their places and return the document, with this metadata instead of its own."""
    writer = PdfWriter(clone_from=io.BytesIO(content))
    writer.pdf_header = "%PDF-1.4"  # the first version with transparency, which figures use
    writer.metadata = dict(metadata)
    for number, slot in enumerate(slots, 1):
        page = writer.pages[slot.page - 1]
        name = NameObject(f"/Figure{number}")
        resources = page["/Resources"].get_object()
        assert isinstance(resources, DictionaryObject)
        forms = resources.setdefault(NameObject("/XObject"), DictionaryObject()).get_object()
        forms[name] = _form(slot.content, writer)
        drawing = DecodedStreamObject()
        drawing.set_data(f"q {slot.scale:.5f} 0 0 {slot.scale:.5f} {slot.x:.2f} {slot.y:.2f} cm {name} Do Q\n".encode())
        existing = page.raw_get("/Contents")
        contents = existing if isinstance(existing, ArrayObject) else ArrayObject([existing])
        page[NameObject("/Contents")] = ArrayObject([*contents, writer._add_object(drawing)])
    output = io.BytesIO()
    writer.write(output)
    return output.getvalue()


def _form(content: bytes, writer: PdfWriter) -> Any:
    """Return the first page of a PDF file as an object that pages can draw."""
    page = PdfReader(io.BytesIO(content)).pages[0]
    contents = page.get_contents()
    stream = DecodedStreamObject()
    stream.set_data(b"" if contents is None else contents.get_data())
    form: StreamObject = stream.flate_encode()
    form[NameObject("/Type")], form[NameObject("/Subtype")] = NameObject("/XObject"), NameObject("/Form")
    form[NameObject("/BBox")] = ArrayObject(page.mediabox)
    for key in ("/Resources", "/Group"):  # the group has the colour space in which transparent areas are blended
        if key in page:
            form[NameObject(key)] = page[key].clone(writer)
    return writer._add_object(form)


def prediction_table(sheets: Sequence[PredictionSheet], width: float) -> Table:
    """Return pictures of predictions with their names above, three in a row."""
    columns = min(SHEETS_PER_ROW, len(sheets))
    each = width / SHEETS_PER_ROW - 8
    data = list[list[Any]]()
    for start in range(0, len(sheets), columns):
        row = sheets[start : start + columns]
        blanks = [""] * (columns - len(row))
        data.append([*(paragraph(sheet.name, PICTURE_NAME) for sheet in row), *blanks])
        data.append([*(_picture(sheet, each) for sheet in row), *blanks])
    padding = [(f"{side}PADDING", (0, 0), (-1, -1), 2) for side in ("LEFT", "RIGHT", "TOP", "BOTTOM")]
    together = [("NOSPLIT", (0, row), (-1, row + 1)) for row in range(0, len(data), 2)]
    return Table(data, [each + 8] * columns, style=[*padding, *together])


def _picture(sheet: PredictionSheet, width: float) -> Picture:
    """Return a picture as JPEG, because PDF has no WebP."""
    encoded = sheet.picture.partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        content = io.BytesIO()
        image.convert("RGB").save(content, "JPEG", quality=JPEG_QUALITY)
        return Picture(content, width, width * image.height / image.width)
