"""Drawings for the page: each panel as a plotly figure, a plain dictionary that the browser draws.

The colour "ink" is the text's: the page puts in what its light or dark form has.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .spec import Axis, Bars, Cells, Dots, Drawing, Line, Look, Mark, Panel, Rule, Words

Figure = dict[str, Any]

SHAPES = {
    ".": "circle", "o": "circle", "s": "square", "D": "diamond", "d": "diamond-tall", "^": "triangle-up",
    "v": "triangle-down", "<": "triangle-left", ">": "triangle-right", "P": "cross", "X": "x", "*": "star",
    "h": "hexagon", "p": "pentagon", "8": "octagon", "_": "line-ew",
}  # fmt: skip
DASHES = {"solid": "solid", "dashed": "dash", "dotted": "dot"}
INCH = 104  # pixels of the page for an inch of print: a screen is read from farther away
LOWEST = 230  # pixels


@dataclass(frozen=True)
class Plot:
    """A panel: its figure, how tall it is, and the least width at which it can be read (0: any)."""

    title: str
    figure: Figure
    height: int
    least: int


def plots(drawing: Drawing) -> list[Plot]:
    rows = -(-len(drawing.panels) // drawing.columns)
    heights = [drawing.panels[row * drawing.columns].tall for row in range(rows)]
    unit = (drawing.size[1] - 0.8) * INCH / sum(heights)
    found = []
    for place, panel in enumerate(drawing.panels):
        row, figure = place // drawing.columns, plot(panel)
        if drawing.shared and panel.y.limits is None:
            figure["layout"]["yaxis"]["range"] = _reach(drawing.panels[row * drawing.columns :][: drawing.columns])
        found.append(Plot(panel.title, figure, max(LOWEST, round(unit * heights[row])), _least(panel)))
    return found


def _reach(panels: Sequence[Panel]) -> list[float | None]:
    """From the lowest to the highest point of some panels, and a little more."""
    edges = [
        values
        for panel in panels
        for mark in panel.marks
        if isinstance(mark, Line | Dots)
        for values in (mark.y, mark.low, mark.high)
        if values is not None and (mark.y is values or not isinstance(mark, Dots) or mark.along == "y")
    ]
    known = [v for values in edges for v in numbers(values) if v is not None] or [0.0, 1.0]
    pad = 0.05 * (max(known) - min(known)) or 0.01
    return numbers((min(known) - pad, max(known) + pad))


def _least(panel: Panel) -> int:
    columns = [len(mark.texts[0]) for mark in panel.marks if isinstance(mark, Cells)]
    return 120 + 78 * columns[0] if columns else 680 if panel.bare else 0


def plot(panel: Panel) -> Figure:
    """A panel as plotly wants it: traces and layout."""
    traces: list[Figure] = []
    shapes: list[Figure] = []
    notes: list[Figure] = []
    for mark in panel.marks:
        match mark:
            case Rule():
                shapes.append(_rule(mark))
                notes += [_rule_name(mark)] if mark.name else []
            case Words():
                notes.append(_words(mark))
            case _:
                traces += _traces(mark)
    layout: Figure = {
        "xaxis": _axis(panel.x, panel.bare),
        "yaxis": _axis(panel.y, panel.bare),
        "shapes": shapes,
        "annotations": notes,
        "showlegend": False,
        "bargap": 0,
        "barmode": "overlay",
        "hovermode": "closest",
    }
    if any(isinstance(mark, Cells) for mark in panel.marks):
        layout["xaxis"] |= {"side": "top"}
    return {"data": traces, "layout": layout}


def _traces(mark: Mark) -> list[Figure]:
    match mark:
        case Line():
            return _line(mark)
        case Dots():
            return [_dots(mark)]
        case Bars():
            return [_bars(mark)]
        case Cells():
            return [_cells(mark)]
    raise TypeError(f"{mark!r} is no trace")


def _line(mark: Line) -> list[Figure]:
    x, y = numbers(mark.x), numbers(mark.y)
    line = {"color": mark.look.colour, "width": mark.width * 1.3, "dash": DASHES[mark.look.dash]}
    found: Figure = {"type": "scatter", "mode": "lines+markers" if mark.shapes else "lines", "x": x, "y": y}
    found |= {"line": line, "name": mark.label}
    if mark.shapes:
        found["marker"] = _marker(mark.look, 7)
    if not mark.label:
        found["hoverinfo"] = "skip"
    if mark.low is None or mark.high is None:
        return [found]
    low, high = numbers(mark.low), numbers(mark.high)
    around = {"x": x + x[::-1], "y": high + low[::-1], "name": mark.label, "hoverinfo": "skip"}
    look = {"fill": "toself", "fillcolor": mark.look.colour, "opacity": 0.14, "mode": "none"}
    return [{"type": "scatter", **around, **look}, found]


def _dots(mark: Dots) -> Figure:
    size = mark.size * (1.0 if mark.look.shape == "." else 1.4)
    found: Figure = {"type": "scatter", "mode": "markers", "x": numbers(mark.x), "y": numbers(mark.y)}
    found |= {"marker": _marker(mark.look, size), "name": mark.label, "opacity": 0.5 if mark.faint else 1.0}
    if mark.words:
        found |= {"text": [_escaped(word) for word in mark.words], "hovertemplate": "%{text}: %{x:.4g}<extra></extra>"}
    if mark.low is not None and mark.high is not None:
        found[f"error_{mark.along}"] = _error(mark.x if mark.along == "x" else mark.y, mark.low, mark.high, mark.look)
    return found


def _bars(mark: Bars) -> Figure:
    flat = mark.along == "x"
    places, values = numbers(mark.places), numbers(mark.values)
    look: Figure = {"color": mark.look.colour}
    if mark.look.hollow:
        look["pattern"] = {"shape": "/", "fgcolor": "rgba(255,255,255,.8)", "fillmode": "overlay", "size": 6}
    found: Figure = {"type": "bar", "orientation": "h" if flat else "v", "width": mark.width, "marker": look}
    found |= {"x": values if flat else places, "y": places if flat else values, "name": mark.label}
    found["hovertemplate"] = f"%{{{mark.along}:.4g}}<extra>%{{fullData.name}}</extra>"
    if mark.low is not None and mark.high is not None:
        found[f"error_{mark.along}"] = _error(mark.values, mark.low, mark.high, Look("ink"))
    return found


def _cells(mark: Cells) -> Figure:
    return {
        "type": "heatmap",
        "z": [numbers(row) for row in mark.shade],
        "text": [
            [f'<span style="color:{mark.ink(i, j)}">{_escaped(text)}</span>' for j, text in enumerate(row)]
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


def _marker(look: Look, size: float) -> Figure:
    shape = SHAPES[look.shape]
    found: Figure = {"symbol": f"{shape}-open" if look.hollow else shape, "size": size, "color": look.colour}
    if shape.startswith("line"):  # a line has no area
        found["line"] = {"width": 2, "color": look.colour}
    return found


def _error(middle: Any, low: Any, high: Any, look: Look) -> Figure:
    middle, low, high = numbers(middle), numbers(low), numbers(high)
    up, down = ([_apart(a, m) for a, m in zip(edge, middle, strict=True)] for edge in (high, low))
    bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
    return bars | {"color": look.colour, "thickness": 1, "width": 2}


def _apart(a: float | None, b: float | None) -> float:
    return 0.0 if a is None or b is None else abs(a - b)


def _rule(mark: Rule) -> Figure:
    line = {"color": "ink", "width": 1.4 if mark.strong else 1, "dash": "dash" if mark.strong else "solid"}
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": mark.at, "y1": mark.at}
    if mark.across == "y":
        ends = {"yref": "paper", "y0": 0, "y1": 1, "x0": mark.at, "x1": mark.at}
    return {"type": "line", "line": line, **ends}


def _rule_name(mark: Rule) -> Figure:
    place = {"xref": "paper", "x": 1, "y": mark.at, "xanchor": "right", "yanchor": "bottom"}
    if mark.across == "y":
        place = {"yref": "paper", "y": 1, "x": mark.at, "xanchor": "right", "yanchor": "top"}
    return {"text": mark.name, "showarrow": False, "font": {"size": 10, "color": "ink"}, **place}


def _words(mark: Words) -> Figure:
    text, (x, y) = _escaped(mark.text), numbers((mark.x, mark.y))
    return {
        "x": x, "y": y, "text": f"<b>{text}</b>" if mark.bold else text, "showarrow": False,
        "xanchor": mark.anchor, "yanchor": mark.rise, "xshift": mark.away,
        "font": {"size": 12 if mark.bold or mark.away else 11, "color": "ink"},
    }  # fmt: skip


def _escaped(text: str) -> str:
    """Plotly reads some HTML in its texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _axis(axis: Axis, bare: bool) -> Figure:
    found: Figure = {"showgrid": axis.grid, "zeroline": False, "automargin": True}
    if axis.label:
        found["title"] = {"text": axis.label}
    if axis.log:
        found["type"] = "log"
    if axis.ticks is not None:
        texts = [_escaped(text) for _, text in axis.ticks]
        found |= {"tickmode": "array", "tickvals": numbers(at for at, _ in axis.ticks), "ticktext": texts}
    if axis.limits is not None:
        found["range"] = numbers(axis.limits)
    if bare:
        found |= {"visible": False, "fixedrange": True}
    return found


def numbers(values: Iterable[Any]) -> list[float | None]:
    """Five digits are more than a screen has; what is not finite is left out."""
    return [float(f"{float(v):.5g}") if math.isfinite(float(v)) else None for v in values]
