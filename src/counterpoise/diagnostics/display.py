"""Display of a diagnosis: a table in the terminal, and a figure."""

import os
from pathlib import Path

from .._files import atomic_path
from .advice import CONFLICT_COSINE, SCALE_DECADES
from .measurements import Measurements


def print_table(found: Measurements, advice: tuple[str, ...]) -> None:
    """Print a table with rich; print the advice alone if rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        print("\n".join(advice))
        return
    table = Table("task", "median loss", "absent", "gradient norm", "|z|/τ", title=f"{found.steps} steps")
    columns = (found.losses, found.absent, found.norms, found.abs_z_over_tau)
    formats = ("{:.3g}", "{:.0%}", "{:.3g}", "{:.3f}")
    for i, task in enumerate(found.tasks):
        table.add_row(task, *(f.format(c[i]) if c else "–" for f, c in zip(formats, columns, strict=True)))
    console = Console()
    console.print(table)
    for line in advice:
        console.print(f"• {line}", highlight=False, markup=False)


def draw_figure(found: Measurements, advice: tuple[str, ...], path: str | os.PathLike[str]) -> None:
    """Draw the spread of the losses and the cosines of the task gradients with matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    spread, cosines = figure.subplots(1, 2, width_ratios=(3, 2))
    steps = range(1, found.steps + 1)
    spread.plot(steps, found.decades, color="#0072B2", label="largest / smallest loss")
    spread.axhline(SCALE_DECADES, color="#D55E00", linestyle="--", linewidth=1, label="threshold for weighting")
    spread.set(xlabel="step", ylabel="decades", ylim=(0, None), title="Spread of the losses")
    spread.legend(frameon=False, loc="best")
    if found.cosines:
        picture = cosines.imshow(found.cosines, vmin=-1, vmax=1, cmap="RdBu")
        places = range(len(found.tasks))
        cosines.set_xticks(places, found.tasks, rotation=45, ha="right")
        cosines.set_yticks(places, found.tasks)
        title = f"Mean cosine of task gradients\n{found.conflict or 0:.0%} of the pairs below {CONFLICT_COSINE}"
        cosines.set_title(title.replace("-", "−"))
        figure.colorbar(picture, ax=cosines, shrink=0.8)
    else:
        cosines.text(0.5, 0.5, "conflict was not measured\n(pass shared=)", ha="center", va="center")
        cosines.set_axis_off()
    figure.suptitle(advice[0].split(":")[0])
    with atomic_path(Path(path)) as temporary:
        figure.savefig(temporary, dpi=150)
