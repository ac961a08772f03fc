"""Replaces matplotlib, which takes a second per figure and is tested in test_figures."""

from pathlib import Path

import pytest

from counterpoise.lab.report.figures.render_matplotlib import figure_paths
from counterpoise.lab.report.figures.spec import FigureSpec


def write_empty_files(spec: FigureSpec, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in figure_paths(path):
        file.touch()


def write_empty_figures(patch: pytest.MonkeyPatch) -> None:
    """Make reports write empty files instead of figures."""
    patch.setattr("counterpoise.lab.report.figures.render_matplotlib.save_figure", write_empty_files)
