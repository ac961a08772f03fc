"""Figures rendered by matplotlib and plotly show the data of their specification."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paper_scores import paper_scores
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from counterpoise.lab.data.pde import EQUATIONS
from counterpoise.lab.report.figures import pinn, scores
from counterpoise.lab.report.figures.render_matplotlib import figure_paths, render, save_figure
from counterpoise.lab.report.figures.render_plotly import plotly_figure, plotly_panels
from counterpoise.lab.report.figures.spec import (
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
from counterpoise.lab.studies import STUDIES

BLUE = MarkStyle("#0072B2")
MARKS: dict[str, Mark] = {
    "line": Line("a", [0, 1, 2], [0.2, 0.8, 0.5], BLUE, [0.1, 0.7, 0.4], [0.3, 0.9, 0.6]),
    "points": Points("a", [0, 1, 2], [0.2, 0.8, 0.5], BLUE, low=[0.1, 0.7, 0.4], high=[0.3, 0.9, 0.6]),
    "bars": Bars("a", [0, 1], [0.4, 0.8], BLUE, 0.7, [0.3, 0.7], [0.5, 0.9]),
    "reference line": ReferenceLine(0.5, "horizontal", "bound", emphasised=True),
    "text": TextLabel(1, 0.5, "text", bold=True),
    "heat map": Heatmap(np.array([[0.0, 1.0]]), [["low", "high"]]),
}


def figure_with(*marks: Mark) -> FigureSpec:
    return FigureSpec("", "", [Panel(marks, "", Axis(limits=(-0.5, 2.5)), Axis(limits=(-0.5, 1.5)))], size=(2, 2))


def pixels(spec: FigureSpec) -> np.ndarray:
    canvas: Any = FigureCanvasAgg(render(spec))
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


@pytest.mark.parametrize("name", MARKS)
def test_matplotlib_draws_each_kind_of_mark(name: str) -> None:
    empty, drawn = pixels(figure_with()), pixels(figure_with(MARKS[name]))
    assert drawn.std() > 0
    assert empty.shape != drawn.shape or (empty != drawn).any(-1).sum() > 50


def test_matplotlib_draws_a_curve_per_method_and_one_legend() -> None:
    study = STUDIES["rescaling"]
    spec = scores.curves(study, paper_scores(study, noise=0.01))
    assert spec is not None
    figure = render(spec)
    visible = [axis for axis in figure.axes if axis.get_visible()]
    assert len(visible) == len(spec.panels)
    assert all(len(axis.lines) == len(study.methods) for axis in visible)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(study.methods) == list(spec.legend())


@pytest.mark.parametrize(("letters", "count"), [(4, 8), (12, 5), (33, 8), (60, 2)])
def test_the_legend_is_not_wider_than_the_figure(letters: int, count: int) -> None:
    lines = [Line(f"{place:e<{letters}}", [0, 1], [0, place], MarkStyle("#0072B2")) for place in range(count)]
    figure = render(FigureSpec("", "", [Panel(lines, "", Axis(), Axis())], size=(7.2, 3.0)))
    figure.canvas.draw()
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width


def test_files_are_an_image_of_the_figure_and_a_pdf(tmp_path: Path) -> None:
    spec = figure_with(MARKS["line"], MARKS["text"])
    save_figure(spec, tmp_path / "figure")
    png, pdf = figure_paths(tmp_path / "figure")
    image = np.asarray(Image.open(png).convert("RGB"))
    assert image.shape == (400, 400, 3)  # 2 inches at 200 dpi
    assert ((image[..., 2].astype(int) - image[..., 0]) > 80).sum() > 100  # blue pixels of the line
    assert pdf.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", MARKS)
def test_plotly_has_a_trace_shape_or_annotation_for_each_kind_of_mark(name: str) -> None:
    empty, drawn = (plotly_figure(figure_with(*marks).panels[0]) for marks in ((), (MARKS[name],)))
    count = {figure["layout"]["xaxis"]["range"][0]: figure for figure in (empty, drawn)}
    assert list(count) == [-0.5]
    sizes = [
        len(figure["data"]) + len(figure["layout"]["shapes"]) + len(figure["layout"]["annotations"])
        for figure in (empty, drawn)
    ]
    assert sizes[0] == 0
    assert sizes[1] == (2 if name in ("line", "reference line") else 1)  # a band, a label


def test_plotly_panels_share_their_range_within_a_row() -> None:
    study = STUDIES["rescaling"]
    spec = scores.curves(study, paper_scores(study, noise=0.01))
    assert spec is not None
    panels = plotly_panels(spec)
    ranges = [tuple(panel.figure["layout"]["yaxis"]["range"]) for panel in panels]
    assert len(ranges) == len(spec.panels)
    for row in range(0, len(ranges), spec.columns):
        assert len(set(ranges[row : row + spec.columns])) == 1


def test_plotly_has_the_limits_of_logarithmic_axes_as_powers() -> None:
    layout = plotly_figure(Panel([], "", Axis(log=True, limits=(0.1, 100.0)), Axis(limits=(0.1, 100.0))))["layout"]
    assert (layout["xaxis"]["range"], layout["yaxis"]["range"]) == ([-1.0, 2.0], [0.1, 100.0])


def test_solutions_on_different_grids_are_compared_with_the_exact_one_on_their_own() -> None:
    equation = EQUATIONS["burgers"]
    exact = {points: equation.exact(equation.grid(points)).reshape(points, points).numpy() for points in (8, 10)}
    spec = pinn.fields("Burgers", equation, {"Sum": exact[8], "LRA": exact[10] + 0.5})
    assert spec is not None
    titles = [panel.title for panel in spec.panels]
    assert titles == ["exact solution", "Sum", "LRA", "", "error, at most 1", "error, at most 0.5"]
    (shown,) = spec.panels[0].marks
    assert isinstance(shown, Field)
    np.testing.assert_array_equal(shown.values, exact[10].T)
