"""Render figure specifications for the page: each panel becomes a plotly figure, as a dictionary.

The page replaces the colour "text-colour" by the text colour of its light or dark theme.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .spec import (
    TEXT_COLOUR,
    Axis,
    Bars,
    Field,
    FigureSpec,
    Heatmap,
    Line,
    Mark,
    MarkStyle,
    Panel,
    Points,
    ReferenceLine,
    TextLabel,
)

Figure = dict[str, Any]

MARKERS = {
    ".": "circle", "o": "circle", "s": "square", "D": "diamond", "d": "diamond-tall", "^": "triangle-up",
    "v": "triangle-down", "<": "triangle-left", ">": "triangle-right", "P": "cross", "X": "x", "*": "star",
    "h": "hexagon", "p": "pentagon", "8": "octagon", "_": "line-ew",
}  # fmt: skip
DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot"}
PIXELS_PER_INCH = 104  # larger than in print: a screen is read from farther away
MIN_HEIGHT = 230  # pixels
NAMED_AXIS_WIDTH = 740  # of a diagram with names on both sides, which are cut off if it is narrower


@dataclass(frozen=True)
class PlotlyPanel:
    """A panel as a plotly figure, with its height and minimum width in pixels (0: none)."""

    title: str
    figure: Figure
    height: int
    min_width: int


def plotly_panels(spec: FigureSpec) -> list[PlotlyPanel]:
    heights = spec.row_heights
    unit = (spec.size[1] - 0.8) * PIXELS_PER_INCH / sum(heights)
    panels = []
    for place, panel in enumerate(spec.panels):
        row, figure = place // spec.columns, plotly_figure(panel)
        if spec.share_y and panel.y.limits is None:
            figure["layout"]["yaxis"]["range"] = _common_range(spec.panels[row * spec.columns :][: spec.columns])
        panels.append(PlotlyPanel(panel.title, figure, max(MIN_HEIGHT, round(unit * heights[row])), _min_width(panel)))
    return panels


def _common_range(panels: Sequence[Panel]) -> list[float | None]:
    """Return the range of y over some panels, with a margin."""
    edges = [
        values
        for panel in panels
        for mark in panel.marks
        if isinstance(mark, Line | Points)
        for values in (mark.y, mark.low, mark.high)
        if values is not None and (mark.y is values or not isinstance(mark, Points) or mark.along == "y")
    ]
    known = [v for values in edges for v in finite_numbers(values) if v is not None] or [0.0, 1.0]
    pad = 0.05 * (max(known) - min(known)) or 0.01
    return finite_numbers((min(known) - pad, max(known) + pad))


def _min_width(panel: Panel) -> int:
    columns = [len(mark.texts[0]) for mark in panel.marks if isinstance(mark, Heatmap)]
    return 120 + 78 * columns[0] if columns else NAMED_AXIS_WIDTH if panel.hide_axes else 0


def plotly_figure(panel: Panel) -> Figure:
    """Return the traces and the layout of a panel."""
    traces: list[Figure] = []
    shapes: list[Figure] = []
    annotations: list[Figure] = []
    for mark in panel.marks:
        match mark:
            case ReferenceLine():
                shapes.append(_reference_line(mark))
                annotations += [_reference_label(mark)] if mark.label else []
            case TextLabel():
                annotations.append(_text_label(mark))
            case _:
                traces += _traces(mark)
    layout: Figure = {
        "xaxis": _axis(panel.x, panel.hide_axes),
        "yaxis": _axis(panel.y, panel.hide_axes),
        "shapes": shapes,
        "annotations": annotations,
        "showlegend": False,
        "bargap": 0,
        "barmode": "overlay",
        "hovermode": "closest",
    }
    if any(isinstance(mark, Heatmap) for mark in panel.marks):
        layout["xaxis"] |= {"side": "top"}
    return {"data": traces, "layout": layout}


def _traces(mark: Mark) -> list[Figure]:
    match mark:
        case Line():
            return _line(mark)
        case Points():
            return [_points(mark)]
        case Bars():
            return [_bars(mark)]
        case Heatmap():
            return [_heatmap(mark)]
        case Field():
            return [_field(mark)]
    raise TypeError(f"{mark!r} is not drawn as a trace")


def _line(mark: Line) -> list[Figure]:
    x, y = finite_numbers(mark.x), finite_numbers(mark.y)
    line = {"color": mark.style.colour, "width": mark.width * 1.3, "dash": DASHES[mark.style.dash]}
    trace: Figure = {"type": "scatter", "mode": "lines+markers" if mark.markers else "lines", "x": x, "y": y}
    trace |= {"line": line, "name": mark.label}
    if mark.markers:
        trace["marker"] = _marker(mark.style, 7)
    if not mark.label:
        trace["hoverinfo"] = "skip"
    if mark.low is None or mark.high is None:
        return [trace]
    low, high = finite_numbers(mark.low), finite_numbers(mark.high)
    around = {"x": x + x[::-1], "y": high + low[::-1], "name": mark.label, "hoverinfo": "skip"}
    fill = {"fill": "toself", "fillcolor": mark.style.colour, "opacity": 0.14, "mode": "none"}
    return [{"type": "scatter", **around, **fill}, trace]


def _points(mark: Points) -> Figure:
    size = mark.size * (1.0 if mark.style.marker == "." else 1.4)
    trace: Figure = {"type": "scatter", "mode": "markers", "x": finite_numbers(mark.x), "y": finite_numbers(mark.y)}
    trace |= {"marker": _marker(mark.style, size), "name": mark.label, "opacity": 0.5 if mark.faint else 1.0}
    if mark.hover_texts:
        trace |= {
            "text": [_escape(text) for text in mark.hover_texts],
            "hovertemplate": "%{text}<extra></extra>" if mark.complete else "%{text}: %{x:.4g}<extra></extra>",
        }
    if mark.low is not None and mark.high is not None:
        trace[f"error_{mark.along}"] = _error(mark.x if mark.along == "x" else mark.y, mark.low, mark.high, mark.style)
    return trace


def _bars(mark: Bars) -> Figure:
    flat = mark.along == "x"
    places, values = finite_numbers(mark.positions), finite_numbers(mark.values)
    marker: Figure = {"color": mark.style.colour}
    if mark.style.hollow:
        marker["pattern"] = {"shape": "/", "fgcolor": "rgba(255,255,255,.8)", "fillmode": "overlay", "size": 6}
    trace: Figure = {"type": "bar", "orientation": "h" if flat else "v", "width": mark.width, "marker": marker}
    trace |= {"x": values if flat else places, "y": places if flat else values, "name": mark.label}
    trace["hovertemplate"] = f"%{{{mark.along}:.4g}}<extra>%{{fullData.name}}</extra>"
    if mark.low is not None and mark.high is not None:
        trace[f"error_{mark.along}"] = _error(mark.values, mark.low, mark.high, MarkStyle(TEXT_COLOUR))
    return trace


def _heatmap(mark: Heatmap) -> Figure:
    return {
        "type": "heatmap",
        "z": [finite_numbers(row) for row in mark.shade],
        "text": [
            [f'<span style="color:{mark.text_colour(i, j)}">{_escape(text)}</span>' for j, text in enumerate(row)]
            for i, row in enumerate(mark.texts)
        ],
        "texttemplate": "%{text}",
        "textfont": {"size": 12},
        "hoverinfo": "skip",
        "colorscale": [[0, "#f7fbff"], [0.25, "#d0e1f2"], [0.5, "#94c4df"], [0.75, "#4a98c9"], [1, "#1764ab"]],
        "showscale": False,
        "zmin": 0,
        "zmax": 1,
        "xgap": 2,
        "ygap": 2,
    }


def _field(mark: Field) -> Figure:
    rows, columns = mark.values.shape
    return {
        "type": "heatmap",
        "x": finite_numbers(np.linspace(*mark.x_range, columns)),
        "y": finite_numbers(np.linspace(*mark.y_range, rows)),
        "z": [finite_numbers(np.round(row, 4)) for row in mark.values],
        "colorscale": "RdBu",
        "zmin": -mark.limit,
        "zmax": mark.limit,
        "hovertemplate": "%{z:.3g}<extra></extra>",
    }


def _marker(style: MarkStyle, size: float) -> Figure:
    shape = MARKERS[style.marker]
    marker: Figure = {"symbol": f"{shape}-open" if style.hollow else shape, "size": size, "color": style.colour}
    if shape.startswith("line"):  # plotly draws such markers only as outlines
        marker["line"] = {"width": 2, "color": style.colour}
    return marker


def _error(middle: Any, low: Any, high: Any, style: MarkStyle) -> Figure:
    middle, low, high = finite_numbers(middle), finite_numbers(low), finite_numbers(high)
    up, down = ([_distance(a, m) for a, m in zip(edge, middle, strict=True)] for edge in (high, low))
    bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
    return bars | {"color": style.colour, "thickness": 1, "width": 2}


def _distance(a: float | None, b: float | None) -> float:
    return 0.0 if a is None or b is None else abs(a - b)


def _reference_line(mark: ReferenceLine) -> Figure:
    line = {
        "color": TEXT_COLOUR,
        "width": 1.4 if mark.emphasised else 1,
        "dash": "dash" if mark.emphasised else "solid",
    }
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": mark.value, "y1": mark.value}
    if mark.orientation == "vertical":
        ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": mark.value, "x1": mark.value}
    return {"type": "line", "line": line, **ends}


def _reference_label(mark: ReferenceLine) -> Figure:
    place = {"xref": "paper", "x": 1, "y": mark.value, "xanchor": "right", "yanchor": "bottom"}
    if mark.orientation == "vertical":
        place = {"yref": "paper", "y": 1, "x": mark.value, "xanchor": "right", "yanchor": "top"}
    return {"text": mark.label, "showarrow": False, "font": {"size": 10, "color": TEXT_COLOUR}, **place}


def _text_label(mark: TextLabel) -> Figure:
    text, (x, y) = _escape(mark.text), finite_numbers((mark.x, mark.y))
    return {
        "x": x, "y": y, "text": f"<b>{text}</b>" if mark.bold else text, "showarrow": False,
        "xanchor": mark.anchor, "yanchor": mark.vertical_anchor, "xshift": mark.x_offset,
        "font": {"size": 12 if mark.bold or mark.x_offset else 11, "color": TEXT_COLOUR},
    }  # fmt: skip


def _escape(text: str) -> str:
    """Escape text: plotly interprets some HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _axis(axis: Axis, hidden: bool) -> Figure:
    options: Figure = {"showgrid": axis.grid, "zeroline": False, "automargin": True}
    if axis.label:
        options["title"] = {"text": axis.label}
    if axis.log:
        options["type"] = "log"
    if axis.ticks is not None:
        texts = [_escape(text) for _, text in axis.ticks]
        options |= {"tickmode": "array", "tickvals": finite_numbers(at for at, _ in axis.ticks), "ticktext": texts}
    if axis.limits is not None:
        options["range"] = finite_numbers(map(math.log10, axis.limits) if axis.log else axis.limits)
    if hidden:
        options |= {"visible": False, "fixedrange": True}
    return options


def finite_numbers(values: Iterable[Any]) -> list[float | None]:
    """Round to five digits, enough for a screen; replace values that are not finite by None."""
    return [float(f"{float(v):.5g}") if math.isfinite(float(v)) else None for v in values]
