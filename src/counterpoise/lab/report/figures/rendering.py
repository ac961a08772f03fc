"""Drawings in print: PNG and PDF by matplotlib, in one style."""

import io
import sys
import threading
from collections.abc import Mapping
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

from ...engine import processors
from ...files import write_whole
from .spec import Axis, Bars, Cells, Dots, Drawing, Line, Look, Panel, Rule, Words

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
    "svg.hashsalt": "counterpoise",  # the same figure is the same file
    "figure.dpi": 200,
}
BLACK = "#222222"
FEW = 5  # steps between ticks: panels are small, and ticks are what takes longest to draw


class Press:
    """Prints drawings; where that is safe, in the background on all processors. Leaving it waits for the last.

    A forked process has everything imported already, which would take longer than the drawing. It is safe as long as
    there is but one thread.
    """

    def __enter__(self) -> Self:
        safe = processors() > 1 and sys.platform == "linux" and threading.active_count() == 1
        self.pool = ProcessPoolExecutor(processors(), get_context("fork")) if safe else None
        self.jobs: list[Future[None]] = []
        return self

    def print(self, drawings: Mapping[str, Drawing], folder: Path) -> list[Path]:
        """Returns which files there will be."""
        for name, drawing in drawings.items():
            if self.pool is None:
                save(drawing, folder / name)
            else:
                self.jobs.append(self.pool.submit(save, drawing, folder / name))
        return [file for name in drawings for file in printed(folder / name)]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.pool is None:
            return
        with self.pool:
            for job in self.jobs:
                if kind is None:
                    job.result()
                else:
                    job.cancel()


def printed(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.pdf")


def save(drawing: Drawing, path: Path) -> None:
    """Writes a drawing as PNG and PDF.

    It is laid out once and drawn once for each: `savefig` would do both twice for each, and that takes longest.
    """
    png, pdf = printed(path)
    figure = inked(drawing)
    canvas: Any = FigureCanvasAgg(figure)
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    content = io.BytesIO()
    canvas.print_png(content)
    write_whole(png, content.getvalue(), durable=False)
    content = io.BytesIO()
    canvas = FigureCanvasPdf(figure)
    canvas.print_pdf(content, metadata={"CreationDate": None})
    write_whole(pdf, content.getvalue(), durable=False)


def inked(drawing: Drawing) -> Figure:
    with mpl.rc_context(RC):
        figure = Figure(figsize=drawing.size, layout="constrained")
        rows = -(-len(drawing.panels) // drawing.columns)
        heights = [drawing.panels[row * drawing.columns].tall for row in range(rows)]
        first = drawing.panels[0]
        alike = rows > 1 and not first.bare and all(panel.x == first.x for panel in drawing.panels)
        axes = figure.subplots(
            rows, drawing.columns, squeeze=False, sharex="col" if alike else False,
            sharey="row" if drawing.shared else False, gridspec_kw={"height_ratios": heights},
        )  # fmt: skip
        for place, axis in enumerate(axes.flatten()):
            if place >= len(drawing.panels):
                axis.set_visible(False)
                continue
            _panel(axis, drawing.panels[place])
            if drawing.shared and place % drawing.columns:
                axis.set_ylabel("")
            if alike and place + drawing.columns < len(drawing.panels):
                axis.set_xlabel("")
            elif alike:
                axis.tick_params(labelbottom=True)  # the last of its column, though the row may be longer
        handles = {label: _handle(axes[0, 0], drawing, label) for label in drawing.labels()}
        if handles:
            columns = min(len(handles), max(3, int(drawing.size[0] / (0.45 + 0.085 * max(map(len, handles))))))
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
        if drawing.title:
            figure.suptitle(drawing.title, fontsize=10)
    return figure


def _panel(axis: Axes, panel: Panel) -> None:
    for mark in panel.marks:
        match mark:
            case Line():
                axis.plot(mark.x, mark.y, linewidth=mark.width, markersize=5, **_line(mark.look, shapes=mark.shapes))
                if mark.low is not None and mark.high is not None:
                    axis.fill_between(mark.x, mark.low, mark.high, color=_colour(mark.look), alpha=0.13, linewidth=0)
            case Dots():
                _dots(axis, mark)
            case Bars():
                _bars(axis, mark)
            case Rule():
                _rule(axis, mark)
            case Words():
                _words(axis, mark)
            case Cells():
                _cells(axis, mark)
    axis.set_title(panel.title, y=1.0)  # a place of its own: to look for one takes a tenth of the time
    if panel.bare:
        axis.axis("off")
    _axis(axis, "x", panel.x)
    _axis(axis, "y", panel.y)
    if any(isinstance(mark, Cells) for mark in panel.marks):
        axis.tick_params(length=0)
        axis.xaxis.tick_top()


def _axis(axis: Axes, name: str, wanted: Axis) -> None:
    part = {"x": axis.xaxis, "y": axis.yaxis}[name]
    part.set_label_text(wanted.label)
    if wanted.ticks is None and not wanted.log:
        part.set_major_locator(MaxNLocator(FEW, steps=[1, 2, 2.5, 5, 10]))
    if wanted.log:
        (axis.set_xscale if name == "x" else axis.set_yscale)("log")
    if wanted.ticks is not None:
        part.set_ticks([at for at, _ in wanted.ticks], [text for _, text in wanted.ticks])
        axis.minorticks_off()
    if wanted.limits is not None:
        (axis.set_xlim if name == "x" else axis.set_ylim)(*wanted.limits)
    if not wanted.grid:
        axis.grid(axis=name, visible=False)  # type: ignore[arg-type]


def _dots(axis: Axes, mark: Dots) -> None:
    x, y = np.asarray(mark.x, float), np.asarray(mark.y, float)
    if mark.low is not None and mark.high is not None:
        middle = x if mark.along == "x" else y
        reach: Any = {f"{mark.along}err": [middle - np.asarray(mark.low), np.asarray(mark.high) - middle]}
        axis.errorbar(x, y, fmt="none", color=_colour(mark.look), linewidth=1.0, **reach)
    look = _line(mark.look, shapes=True) | {"linestyle": ""}
    axis.plot(x, y, markersize=mark.size, alpha=0.5 if mark.faint else 1.0, **look)


def _bars(axis: Axes, mark: Bars) -> None:
    error: Any = {}
    if mark.low is not None and mark.high is not None:
        values = np.asarray(mark.values)
        error = {f"{mark.along}err": [values - np.asarray(mark.low), np.asarray(mark.high) - values]}
    look: Any = _filled(mark.look) | {"error_kw": {"ecolor": BLACK, "capsize": 2, "linewidth": 0.9}}
    if mark.along == "x":
        axis.barh(mark.places, mark.values, mark.width, **look, **error)
    else:
        axis.bar(mark.places, mark.values, mark.width, **look, **error)


def _rule(axis: Axes, mark: Rule) -> None:
    look: Any = {"color": BLACK, "linewidth": 1.1 if mark.strong else 0.8, "linestyle": "--" if mark.strong else "-"}
    if mark.across == "x":
        axis.axhline(mark.at, **look)
        place: Any = {"xy": (1, mark.at), "xycoords": ("axes fraction", "data"), "xytext": (-2, 2), "va": "bottom"}
    else:
        axis.axvline(mark.at, **look)
        place = {"xy": (mark.at, 1), "xycoords": ("data", "axes fraction"), "xytext": (-2, -3), "va": "top"}
    if mark.name:
        axis.annotate(mark.name, textcoords="offset points", ha="right", fontsize=7, **place)


def _words(axis: Axes, mark: Words) -> None:
    rise = {"top": "top", "middle": "center", "bottom": "bottom"}[mark.rise]
    axis.annotate(
        mark.text, (mark.x, mark.y), (mark.away, 0), textcoords="offset points", ha=mark.anchor, va=rise,
        fontsize=9 if mark.bold or mark.away else 8, weight="bold" if mark.bold else "normal",
    )  # fmt: skip


def _cells(axis: Axes, mark: Cells) -> None:
    axis.imshow(mark.shade, cmap="Blues", aspect="auto", vmin=0, vmax=1.25)
    for i, row in enumerate(mark.texts):
        for j, text in enumerate(row):
            axis.text(j, i, text, ha="center", va="center", color=mark.ink(i, j))


def _colour(look: Look) -> str:
    return BLACK if look.colour == "ink" else look.colour


def _filled(look: Look) -> dict[str, Any]:
    """A bar; hatched where a line would be dashed."""
    hatch = {"hatch": "///", "edgecolor": "white", "linewidth": 0} if look.hollow else {}
    return {"facecolor": _colour(look)} | hatch


def _line(look: Look, *, shapes: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "color": _colour(look),
        "linestyle": {"solid": "-", "dashed": "--", "dotted": ":"}[look.dash],
    }
    if shapes:
        found["marker"] = look.shape
        if look.hollow:
            found["markerfacecolor"] = "white"
    return found


def _handle(axis: Axes, drawing: Drawing, label: str) -> Any:
    """What stands for a label in the legend: drawn as its first mark is, outside of every panel."""
    first = next(
        m for panel in drawing.panels for m in panel.marks if isinstance(m, Line | Dots | Bars) and m.label == label
    )
    if isinstance(first, Bars):
        return mpl.patches.Patch(**_filled(first.look))
    look = _line(first.look, shapes=isinstance(first, Dots) or first.shapes)
    look |= {"linestyle": ""} if isinstance(first, Dots) else {}
    return mpl.lines.Line2D([], [], markersize=5, linewidth=1.6, **look)
