"""Figure specifications: panels of lines, points, bars, heat maps, fields and labels, independent of the renderer.

`render_matplotlib` draws them for print, `render_plotly` for the page, with the same numbers and colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64] | Sequence[float]
Dash = Literal["solid", "dashed", "dotted"]


@dataclass(frozen=True)
class MarkStyle:
    """A colour, a line style and a marker."""

    colour: str
    marker: str = "o"  # in the notation of matplotlib
    dash: Dash = "solid"
    hollow: bool = False


TEXT_COLOUR = "text-colour"  # resolved by the renderer: dark on a light background, light on a dark one
TEXT_STYLE = MarkStyle(TEXT_COLOUR)
GREY_STYLE = MarkStyle("#888888")


@dataclass(frozen=True)
class Line:
    """A curve, optionally with a band around it and markers at its points."""

    label: str  # in the legend; "" for none
    x: Numbers
    y: Numbers
    style: MarkStyle
    low: Numbers | None = None
    high: Numbers | None = None
    markers: bool = False
    width: float = 1.5


@dataclass(frozen=True)
class Points:
    """Points without a connecting line, optionally with intervals."""

    label: str
    x: Numbers
    y: Numbers
    style: MarkStyle
    size: float = 5.0  # in typographic points
    low: Numbers | None = None
    high: Numbers | None = None
    along: Literal["x", "y"] = "y"  # the direction of the intervals
    faint: bool = False
    hover_texts: Sequence[str] = ()  # shown when the pointer is over a point
    complete: bool = False  # whether hover_texts contain the value


@dataclass(frozen=True)
class Bars:
    """Bars that start at zero, optionally with intervals."""

    label: str
    positions: Numbers
    values: Numbers
    style: MarkStyle
    width: float = 0.7
    low: Numbers | None = None
    high: Numbers | None = None
    along: Literal["x", "y"] = "y"  # the direction of the bars


@dataclass(frozen=True)
class ReferenceLine:
    """A line across the whole panel."""

    value: float
    orientation: Literal["horizontal", "vertical"]
    label: str = ""  # written at its end
    emphasised: bool = False


@dataclass(frozen=True)
class TextLabel:
    """Text at a position."""

    x: float
    y: float
    text: str
    anchor: Literal["left", "center", "right"] = "center"
    vertical_anchor: Literal["top", "middle", "bottom"] = "middle"
    bold: bool = False
    x_offset: float = 0.0  # typographic points to the right


@dataclass(frozen=True)
class Heatmap:
    """A heat map: the text of each cell, and its shade from 0 (light) to 1 (dark)."""

    shade: NDArray[np.float64]
    texts: Sequence[Sequence[str]]

    def text_colour(self, row: int, column: int) -> str:
        """Return the colour that is more legible on the cell's blue."""
        return "white" if self.shade[row, column] > 0.88 else "black"


@dataclass(frozen=True)
class Field:
    """A function on a rectangle, drawn as an image with colours from −limit (blue) to limit (red)."""

    values: NDArray[np.float64]  # rows from the bottom to the top
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    limit: float


Mark = Line | Points | Bars | ReferenceLine | TextLabel | Heatmap | Field


@dataclass(frozen=True)
class Axis:
    """An axis of a panel."""

    label: str = ""
    log: bool = False
    ticks: Sequence[tuple[float, str]] | None = None  # None: chosen by the renderer
    limits: tuple[float, float] | None = None
    grid: bool = True


@dataclass(frozen=True)
class Panel:
    """A coordinate system with its marks."""

    marks: Sequence[Mark]
    title: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    hide_axes: bool = False
    relative_height: float = 1.0


@dataclass(frozen=True)
class FigureSpec:
    """A figure: panels, row by row, with a common legend."""

    title: str
    alt_text: str
    panels: Sequence[Panel]
    columns: int = 1
    size: tuple[float, float] = (7.2, 4.6)  # inches
    share_y: bool = False  # within each row

    @property
    def row_heights(self) -> list[float]:
        """The relative height of each row: that of its first panel."""
        return [panel.relative_height for panel in self.panels[:: self.columns]]

    def legend(self) -> dict[str, MarkStyle]:
        """Return the style of each label, as it first appears."""
        found: dict[str, MarkStyle] = {}
        for panel in self.panels:
            for mark in panel.marks:
                if isinstance(mark, Line | Points | Bars) and mark.label:
                    found.setdefault(mark.label, mark.style)
        return found


def band_edges(mean: NDArray[np.float64], sd: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return mean - sd, mean + sd
