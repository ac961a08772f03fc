"""Display of a diagnosis: a table in the terminal, and a figure."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import atomic_path
from .advice import SCALE_DECADES
from .evaluation import CONFLICT_COSINE
from .measurements import Measurements

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def print_table(found: Measurements, advice: tuple[str, ...]) -> None:
    """Print a table with rich; print the advice alone if rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print("\n".join(advice))
        return
    headings = ("task", "median loss", "fell by", "absent", "weight", "gradient norm", "|z|/τ")
    table = Table(*headings, title=f"{found.steps} steps, {found.spread:.1f} decades between the losses")
    columns = (found.losses, found.fallen, found.absent, found.weights, found.norms, found.abs_z_over_tau)
    formats = ("{:.3g}", "{:.1f} decades", "{:.0%}", "{:.2%}", "{:.3g}", "{:.3f}")
    for i, task in enumerate(found.tasks):
        cells = (f.format(c[i]) if c and not math.isnan(c[i]) else "–" for f, c in zip(formats, columns, strict=True))
        table.add_row(task, *cells)
    console = Console()
    console.print(table)
    for line in advice:
        console.print(f"• {line}", highlight=False, markup=False)


def draw_figure(found: Measurements, advice: tuple[str, ...], path: str | os.PathLike[str]) -> None:
    """Draw the spread of losses and weights, the scale of each task, and the cosines of the task gradients."""
    from matplotlib.figure import Figure

    height = 3.8 + 0.15 * max(len(found.tasks) - 8, 0)
    figure = Figure(figsize=(12.0, min(height, 12.0)), layout="constrained")
    spread, scales, cosines = figure.subplots(1, 3, width_ratios=(3, 2.5, 2.5))
    _draw_spread(found, spread)
    _draw_scales(found, scales)
    _draw_cosines(found, cosines)
    figure.legend(loc="outside lower center", ncols=7, frameon=False, fontsize="small")
    title = advice[0].split(":")[0]
    figure.suptitle(f"{title}: {' and '.join(found.vanishing)}" if found.collapse_steps else title)
    with atomic_path(Path(path)) as temporary:
        figure.savefig(temporary, dpi=150)


def _draw_spread(found: Measurements, axes: "Axes") -> None:
    steps = range(1, found.steps + 1)
    axes.plot(steps, found.decades, color=BLUE, linewidth=2.5, alpha=0.6, label="losses")
    if found.weight_decades:
        axes.plot(steps, found.weight_decades, color=GREEN, linewidth=1.2, label="weights")
    axes.axhline(SCALE_DECADES, color="#555555", linestyle="--", linewidth=1, label="threshold for losses")
    if found.collapse_steps:
        start = found.steps - found.collapse_steps + 1
        axes.axvspan(start, found.steps, color=ORANGE, alpha=0.12, linewidth=0, label="collapse")
    axes.set(
        xlabel="step",
        ylabel="decades",
        ylim=(0, None),
        title=f"Largest over smallest loss{' and weight' if found.weight_decades else ''}",
    )


def _draw_scales(found: Measurements, axes: "Axes") -> None:
    places = range(len(found.tasks))
    rows = (
        (found.losses, "o", BLUE, "median loss"),
        (found.norms, "D", ORANGE, "median gradient norm"),
        (found.weights, "s", GREEN, "median share of the weights"),
    )
    for values, marker, color, label in rows:
        if values:
            positive = [value if value > 0 else math.nan for value in values]
            axes.plot(positive, places, marker, color=color, label=label, markersize=6, alpha=0.8)
    axes.set_yticks(places, found.tasks)
    axes.set(xscale="log", ylim=(len(found.tasks) - 0.5, -0.5), title="Scale of each task")
    axes.grid(axis="y", linewidth=0.5, alpha=0.5)


def _draw_cosines(found: Measurements, axes: "Axes") -> None:
    if not found.cosines:
        axes.text(0.5, 0.5, "conflict was not measured\n(pass shared=)", ha="center", va="center")
        axes.set_axis_off()
        return
    picture = axes.imshow(found.cosines, vmin=-1, vmax=1, cmap="RdBu")
    places = range(len(found.tasks))
    axes.set_xticks(places, found.tasks, rotation=45, ha="right")
    axes.set_yticks(places, found.tasks)
    title = f"Mean cosine of task gradients\n{found.conflict or 0:.0%} of the pairs below {CONFLICT_COSINE}"
    axes.set_title(title.replace("-", "−"))
    axes.figure.colorbar(picture, ax=axes, shrink=0.8)
