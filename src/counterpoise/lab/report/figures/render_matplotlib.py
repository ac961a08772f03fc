"""Render figure specifications with matplotlib, as PNG and PDF files."""

import gc
import io
import struct
import sys
import textwrap
import threading
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from ...engine import available_cpus
from ...files import write_atomic
from .spec import (
    TEXT_COLOUR,
    Axis,
    Bars,
    Field,
    FigureSpec,
    Heatmap,
    Line,
    MarkStyle,
    Panel,
    Points,
    ReferenceLine,
    TextLabel,
)

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "counterpoise",  # makes the files reproducible
    "figure.dpi": 200,
}
DARK = "#222222"
TITLE_CHARACTER, NAME_CHARACTER = 0.075, 0.07  # inches, the mean width of a character of a title or of a tick's name
LEGEND_KEY, LEGEND_CHARACTERS = 0.45, (0.085, 0.065)  # inches of an entry, and of its characters with room and without
METRES_PER_INCH = 0.0254
MAX_TICK_INTERVALS = 5  # panels are small, and drawing ticks takes most of the time


class MeasuredAxes(Axes):
    """Axes whose labels are measured once: the layout does it twice, which takes a tenth of the time of a figure."""

    _margins: NDArray[np.float64] | None = None

    def get_tightbbox(self, *args: Any, **options: Any) -> Bbox | None:
        """Return the box around the axes and their labels."""
        if self._margins is not None:
            return Bbox(self.bbox.get_points() + self._margins)
        found = super().get_tightbbox(*args, **options)
        if found is not None:
            self._margins = found.get_points() - self.bbox.get_points()
        return found


class FigureWriter:
    """Context manager that writes figures in background processes where possible. Leaving it waits for all of them.

    Processes are forked, because importing matplotlib anew would take longer than spec. Forking is safe only on Linux
    in a process with a single thread; otherwise figures are written at once.
    """

    def __enter__(self) -> Self:
        safe = available_cpus() > 1 and sys.platform == "linux" and threading.active_count() == 1
        self.pool = None
        if safe:
            gc.freeze()  # no process looks for garbage among the collected runs, which are many small objects
            self.pool = ProcessPoolExecutor(available_cpus(), get_context("fork"), gc.disable)
        self.jobs: list[Future[None]] = []
        return self

    def submit(self, figures: Mapping[str, FigureSpec], folder: Path) -> list[Path]:
        """Write figures, now or in the background. Return the paths of their files."""
        for name, spec in figures.items():
            if self.pool is None:
                save_figure(spec, folder / name)
            else:
                self.jobs.append(self.pool.submit(_save_in_background, spec, folder / name))
        return [file for name in figures for file in figure_paths(folder / name)]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.pool is None:
            return
        gc.unfreeze()
        with self.pool:
            for job in self.jobs:
                if kind is None:
                    job.result()
                else:
                    job.cancel()


def _save_in_background(spec: FigureSpec, path: Path) -> None:
    """Write a figure in a process without automatic garbage collection, which takes a tenth of the drawing time."""
    save_figure(spec, path)
    gc.collect(0)  # the figure, whose parts refer to each other


def figure_paths(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.pdf")


def save_figure(spec: FigureSpec, path: Path) -> None:
    """Write a figure as PNG and PDF.

    The layout is computed once for both files, and each is drawn once. `savefig` would do both twice for each file.
    """
    png, pdf = figure_paths(path)
    figure = render(spec)
    canvas: Any = FigureCanvasAgg(figure)
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    canvas.draw()
    write_atomic(png, encode_png(np.asarray(canvas.buffer_rgba()), figure.dpi), durable=False, to_pipes=False)
    content = io.BytesIO()
    canvas = FigureCanvasPdf(figure)
    canvas.print_pdf(content, metadata={"CreationDate": None})
    write_atomic(pdf, content.getvalue(), durable=False, to_pipes=False)


def encode_png(pixels: NDArray[np.uint8], dpi: float) -> bytes:
    """Return pixels of RGBA, none of them transparent, as a PNG file.

    The rows are not filtered. Pillow filters them, which makes files 5 % smaller and takes 1.6 times as long.
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # a row starts with its filter, 0
    rows[:, 1:] = pixels[:, :, :3].reshape(height, -1)
    density = round(dpi / METRES_PER_INCH)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0),  # 8 bits, RGB
        b"pHYs": struct.pack(">IIB", density, density, 1),  # per metre
        b"IDAT": zlib.compress(rows.tobytes(), 3),
        b"IEND": b"",
    }
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks.items():
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


def render(spec: FigureSpec) -> Figure:
    """Return a matplotlib figure."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=spec.size, layout="constrained")
        rows, first = len(spec.row_heights), spec.panels[0]
        share_x = rows > 1 and not first.hide_axes and all(panel.x == first.x for panel in spec.panels)
        axes = figure.subplots(
            rows, spec.columns, squeeze=False, sharex="col" if share_x else False,
            sharey="row" if spec.share_y else False, gridspec_kw={"height_ratios": spec.row_heights},
            subplot_kw={"axes_class": MeasuredAxes},
        )  # fmt: skip
        names = [len(name) for _, name in first.y.ticks or ()] if spec.share_y else []
        panel_width = (spec.size[0] - NAME_CHARACTER * max(names, default=0)) / spec.columns
        for place, axis in enumerate(axes.flatten()):
            if place >= len(spec.panels):
                axis.set_visible(False)
                continue
            _panel(axis, spec.panels[place], int(panel_width / TITLE_CHARACTER))
            if spec.share_y and place % spec.columns:
                axis.set_ylabel("")
            if share_x and place + spec.columns < len(spec.panels):
                axis.set_xlabel("")
            elif share_x:
                axis.tick_params(labelbottom=True)  # the lowest panel of its column, even if the last row is incomplete
            _simplify_layout(axis, spines=share_x)
        handles = {label: _legend_handle(spec, label) for label in spec.legend()}
        if handles:
            figure.legend(
                handles.values(),
                handles.keys(),
                loc="outside lower center",
                ncols=_legend_columns(spec.size[0], handles),
            )
        if spec.title:
            figure.suptitle(textwrap.fill(spec.title, int(spec.size[0] / TITLE_CHARACTER)), fontsize=10)
    return figure


def _simplify_layout(axis: Axes, *, spines: bool) -> None:
    """Leave out of the layout what takes long to measure: empty labels, and spines unless ticks have no labels."""
    for part in (axis.xaxis, axis.yaxis):
        if not part.get_label_text():
            part.set_label_coords(0, 0)  # a fixed position
    for spine in axis.spines.values():
        spine.set_in_layout(spines)


def _panel(axis: Axes, panel: Panel, title_width: int) -> None:
    for mark in panel.marks:
        match mark:
            case Line():
                axis.plot(
                    mark.x, mark.y, linewidth=mark.width, markersize=5, **_line_style(mark.style, markers=mark.markers)
                )
                if mark.low is not None and mark.high is not None:
                    axis.fill_between(mark.x, mark.low, mark.high, color=_colour(mark.style), alpha=0.13, linewidth=0)
            case Points():
                _points(axis, mark)
            case Bars():
                _bars(axis, mark)
            case ReferenceLine():
                _reference_line(axis, mark)
            case TextLabel():
                _text_label(axis, mark)
            case Heatmap():
                _heatmap(axis, mark)
            case Field():
                extent = (*mark.x_range, *mark.y_range)
                limits: Any = {"vmin": -mark.limit, "vmax": mark.limit}
                axis.imshow(mark.values, cmap="RdBu_r", aspect="auto", origin="lower", extent=extent, **limits)
    title = textwrap.fill(panel.title, title_width)
    axis.set_title(title, y=1.0)  # a fixed position: searching for one takes a tenth of the drawing time
    if panel.hide_axes:
        axis.axis("off")
    _axis(axis, "x", panel.x)
    _axis(axis, "y", panel.y)
    if any(isinstance(mark, Heatmap) for mark in panel.marks):
        axis.tick_params(length=0)
        axis.xaxis.tick_top()


def _axis(axis: Axes, name: str, spec: Axis) -> None:
    part = {"x": axis.xaxis, "y": axis.yaxis}[name]
    part.set_label_text(spec.label)
    if spec.ticks is None and not spec.log:
        part.set_major_locator(MaxNLocator(MAX_TICK_INTERVALS, steps=[1, 2, 2.5, 5, 10]))
    if spec.log:
        (axis.set_xscale if name == "x" else axis.set_yscale)("log")
    if spec.ticks is not None:
        part.set_ticks([at for at, _ in spec.ticks], [text for _, text in spec.ticks])
        axis.minorticks_off()
    if spec.limits is not None:
        (axis.set_xlim if name == "x" else axis.set_ylim)(*spec.limits)
    if not spec.grid:
        axis.grid(axis=name, visible=False)  # type: ignore[arg-type]


def _points(axis: Axes, mark: Points) -> None:
    x, y = np.asarray(mark.x, float), np.asarray(mark.y, float)
    if mark.low is not None and mark.high is not None:
        middle = x if mark.along == "x" else y
        reach: Any = {f"{mark.along}err": [middle - np.asarray(mark.low), np.asarray(mark.high) - middle]}
        axis.errorbar(x, y, fmt="none", color=_colour(mark.style), linewidth=1.0, **reach)
    options = _line_style(mark.style, markers=True) | {"linestyle": ""}
    axis.plot(x, y, markersize=mark.size, alpha=0.5 if mark.faint else 1.0, **options)


def _bars(axis: Axes, mark: Bars) -> None:
    error: Any = {}
    if mark.low is not None and mark.high is not None:
        values = np.asarray(mark.values)
        error = {f"{mark.along}err": [values - np.asarray(mark.low), np.asarray(mark.high) - values]}
    options: Any = _bar_style(mark.style) | {"error_kw": {"ecolor": DARK, "capsize": 2, "linewidth": 0.9}}
    if mark.along == "x":
        axis.barh(mark.positions, mark.values, mark.width, **options, **error)
    else:
        axis.bar(mark.positions, mark.values, mark.width, **options, **error)


def _reference_line(axis: Axes, mark: ReferenceLine) -> None:
    options: Any = {
        "color": DARK,
        "linewidth": 1.1 if mark.emphasised else 0.8,
        "linestyle": "--" if mark.emphasised else "-",
    }
    if mark.orientation == "horizontal":
        axis.axhline(mark.value, **options)
        place: Any = {"xy": (1, mark.value), "xycoords": ("axes fraction", "data"), "xytext": (-2, 2), "va": "bottom"}
    else:
        axis.axvline(mark.value, **options)
        place = {"xy": (mark.value, 1), "xycoords": ("data", "axes fraction"), "xytext": (-2, -3), "va": "top"}
    if mark.label:
        axis.annotate(mark.label, textcoords="offset points", ha="right", fontsize=7, **place)


def _text_label(axis: Axes, mark: TextLabel) -> None:
    vertical = {"top": "top", "middle": "center", "bottom": "bottom"}[mark.vertical_anchor]
    axis.annotate(
        mark.text, (mark.x, mark.y), (mark.x_offset, 0), textcoords="offset points", ha=mark.anchor, va=vertical,
        fontsize=9 if mark.bold or mark.x_offset else 8, weight="bold" if mark.bold else "normal",
    )  # fmt: skip


def _heatmap(axis: Axes, mark: Heatmap) -> None:
    axis.imshow(mark.shade, cmap="Blues", aspect="auto", vmin=0, vmax=1.25)
    for i, row in enumerate(mark.texts):
        for j, text in enumerate(row):
            axis.text(j, i, text, ha="center", va="center", color=mark.text_colour(i, j))


def _colour(style: MarkStyle) -> str:
    return DARK if style.colour == TEXT_COLOUR else style.colour


def _bar_style(style: MarkStyle) -> dict[str, Any]:
    """Return the style of a bar: hatched where a marker would be hollow."""
    hatch = {"hatch": "///", "edgecolor": "white", "linewidth": 0} if style.hollow else {}
    return {"facecolor": _colour(style)} | hatch


def _line_style(style: MarkStyle, *, markers: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "color": _colour(style),
        "linestyle": {"solid": "-", "dashed": "--", "dotted": ":"}[style.dash],
    }
    if markers:
        options["marker"] = style.marker
        if style.hollow:
            options["markerfacecolor"] = "white"
    return options


def _legend_columns(width: float, labels: Collection[str]) -> int:
    """Return the number of columns of a legend: with room between them, or up to three that just fit."""
    longest = max(map(len, labels))
    roomy, tight = (int(width / (LEGEND_KEY + character * longest)) for character in LEGEND_CHARACTERS)
    return max(1, min(len(labels), max(roomy, min(3, tight))))


def _legend_handle(spec: FigureSpec, label: str) -> Any:
    """Return the legend entry of a label, in the style of its first mark."""
    first = next(
        m for panel in spec.panels for m in panel.marks if isinstance(m, Line | Points | Bars) and m.label == label
    )
    if isinstance(first, Bars):
        return mpl.patches.Patch(**_bar_style(first.style))
    options = _line_style(first.style, markers=isinstance(first, Points) or first.markers)
    options |= {"linestyle": ""} if isinstance(first, Points) else {}
    return mpl.lines.Line2D([], [], markersize=5, linewidth=1.6, **options)
