"""What a figure shows, apart from who draws it: panels of lines, dots, bars, cells and words.

Matplotlib draws them for print (`ink`), plotly for the page (`page.plots`): the same numbers, the same colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64] | Sequence[float]
Dash = Literal["solid", "dashed", "dotted"]


@dataclass(frozen=True)
class Look:
    """A colour with a line style and a shape."""

    colour: str
    shape: str = "o"  # matplotlib's letter for it
    dash: Dash = "solid"
    hollow: bool = False


INK = Look("ink")  # the colour of the text: dark on light, light on dark
GREY = Look("#888888")


@dataclass(frozen=True)
class Line:
    """A curve, perhaps with a band around it, and with shapes at its points."""

    label: str  # its entry in the legend; none: ""
    x: Numbers
    y: Numbers
    look: Look
    low: Numbers | None = None
    high: Numbers | None = None
    shapes: bool = False
    width: float = 1.5


@dataclass(frozen=True)
class Dots:
    """Points that are not joined, perhaps with intervals."""

    label: str
    x: Numbers
    y: Numbers
    look: Look
    size: float = 5.0  # points
    low: Numbers | None = None
    high: Numbers | None = None
    along: Literal["x", "y"] = "y"  # the direction of the intervals
    faint: bool = False
    words: Sequence[str] = ()  # what is said of each when it is pointed at


@dataclass(frozen=True)
class Bars:
    """Bars from zero at some places, with intervals."""

    label: str
    places: Numbers
    values: Numbers
    look: Look
    width: float = 0.7
    low: Numbers | None = None
    high: Numbers | None = None
    along: Literal["x", "y"] = "y"  # the direction in which they grow


@dataclass(frozen=True)
class Rule:
    """A line across the whole panel."""

    at: float
    across: Literal["x", "y"]  # "x": horizontal
    name: str = ""  # written at it
    strong: bool = False


@dataclass(frozen=True)
class Words:
    """Text at a place."""

    x: float
    y: float
    text: str
    anchor: Literal["left", "center", "right"] = "center"
    rise: Literal["top", "middle", "bottom"] = "middle"
    bold: bool = False
    away: float = 0.0  # points to the right


@dataclass(frozen=True)
class Cells:
    """A heat map: what is written in each cell, and how dark it is, from 0 to 1."""

    shade: NDArray[np.float64]
    texts: Sequence[Sequence[str]]

    def ink(self, row: int, column: int) -> str:
        """The colour of a text: whichever can be read better on the cell's blue."""
        return "white" if self.shade[row, column] > 0.88 else "black"


Mark = Line | Dots | Bars | Rule | Words | Cells


@dataclass(frozen=True)
class Axis:
    label: str = ""
    log: bool = False
    ticks: Sequence[tuple[float, str]] | None = None  # None: as the drawer likes
    limits: tuple[float, float] | None = None
    grid: bool = True


@dataclass(frozen=True)
class Panel:
    marks: Sequence[Mark]
    title: str = ""
    x: Axis = Axis()
    y: Axis = Axis()
    bare: bool = False  # without axes
    tall: float = 1.0  # against the other panels of its drawing


@dataclass(frozen=True)
class Drawing:
    """A figure: panels row by row, with one legend for all of them."""

    title: str
    says: str  # what is to be seen, for those who do not see it
    panels: Sequence[Panel]
    columns: int = 1
    size: tuple[float, float] = (7.2, 4.6)  # inches in print
    shared: bool = field(default=False)  # rows share their y axis

    def labels(self) -> dict[str, Look]:
        """The legend: each label once, as it is first drawn."""
        found: dict[str, Look] = {}
        for panel in self.panels:
            for mark in panel.marks:
                if isinstance(mark, Line | Dots | Bars) and mark.label:
                    found.setdefault(mark.label, mark.look)
        return found


def interval(mean: NDArray[np.float64], sd: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return mean - sd, mean + sd
