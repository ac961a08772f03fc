"""Draw the figures of the documentation from the library and the recorded results: python docs/figures.py."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from qm9_table import ARCHIVE, Recorded
from recorded import read_first_table
from recorded_leaderboard import recorded_board, recorded_costs

import counterpoise as cp
from counterpoise.lab.report.figures.leaderboard import RECOMMENDED, frontier, overview
from counterpoise.lab.report.figures.qm9 import curves_and_errors
from counterpoise.lab.report.figures.render_matplotlib import render
from counterpoise.lab.report.pdf_figures import reflow
from counterpoise.lab.studies.qm9 import MAIN, STUDY

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "figures"
PINNS = ROOT / "docs" / "pinns.json"
PASSES = ROOT / "benchmarks" / "results" / "passes_growth_cpu.json"
SCORES = ROOT / "results" / "beyond" / "tables" / "beyond-rescaling.md"
TASKS = ("seg", "depth", "normals")
COLOURS = ("#0072B2", "#D55E00", "#00845F")  # one per task, as in the atlas
DASHES = ("-", "--", ":")
LR, STEPS = 3e-3, 480  # the learning rate and length of the paper's synthetic runs
STYLE: dict[Any, Any] = {
    "font.size": 9, "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"], "axes.titlesize": 10,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.6, "legend.frameon": False, "svg.fonttype": "none",
    "svg.hashsalt": "counterpoise",  # makes the files reproducible
}  # fmt: skip
DARK: dict[Any, Any] = {
    "text.color": "#E6EDF3", "axes.labelcolor": "#E6EDF3", "axes.edgecolor": "#7D8590", "xtick.color": "#C9D1D9",
    "ytick.color": "#C9D1D9", "grid.color": "#7D8590",
}  # fmt: skip


def score_by_factor(dark: bool = False) -> Figure:
    """Plot the recorded macro score of five methods against the factor on one loss."""
    methods = {
        "BPGS": ("BPGS", "#58A6FF" if dark else "#0072B2", "o-", 2.6),
        "CAGrad": ("CAGrad", "#D2A8FF" if dark else "#8250A8", "s-", 1.4),
        "PCGrad": ("PCGrad", "#56D4A0" if dark else "#00845F", "^-", 1.4),
        "Kendall": ("Kendall", "#FFA657" if dark else "#D55E00", "D-", 1.4),
        "Sum": ("plain sum", "#9DA7B3" if dark else "#6E7781", "v-", 1.4),
    }
    factors = ("×1", "×10", "×100", "×1000")
    recorded = read_first_table(SCORES)
    figure = Figure(figsize=(7.2, 3.1), layout="constrained")
    axis = figure.subplots()
    for method, (label, colour, style, width) in methods.items():
        scores = [recorded[method, factor].mean for factor in factors]
        axis.plot(range(4), scores, style, color=colour, linewidth=width, markersize=5)
        label, nudge = f"{scores[-1]:.3f}  {label}", (10, -2 if method == "CAGrad" else 2)
        text = axis.annotate(label, (3, scores[-1]), nudge, textcoords="offset points", color=colour, va="center")
        text.set(annotation_clip=False, fontweight="bold" if method == "BPGS" else "normal")
    axis.set_xticks(range(4), factors)
    axis.set_yticks([0.65, 0.70, 0.75])
    axis.set(
        xlim=(-0.1, 3.05), ylim=(0.62, 0.79), xlabel="factor on one of five losses", ylabel="score on held-out data"
    )
    axis.set_title("One loss is multiplied, nothing else changes", loc="left")
    return figure


def chart() -> Figure:
    """Plot the bounded interval of one batch, the sigmoid of θ that maps into it, and the tasks on it."""
    losses = torch.tensor([1.2, 60.0, 0.05], dtype=torch.float64)
    balancer = cp.BPGS(list(TASKS)).double()
    balancer(losses)
    at = balancer.geometry
    assert at is not None
    mu, reach = at.mu.item(), at.width.item() / 2
    theta = torch.linspace(-6, 6, 61, dtype=torch.float64)
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.axhspan(mu - reach, mu + reach, color="#0072B2", alpha=0.07, linewidth=0)
    axis.plot(theta, mu + reach * torch.tanh(theta / 2), color="#333333", linewidth=1.6)
    axis.axhline(mu, color="#333333", linewidth=0.8, linestyle="--")
    for name, s, t, loss, colour in zip(TASKS, at.s, at.theta, losses, COLOURS, strict=True):
        axis.plot([t, -6], [s, s], color=colour, linewidth=0.9, linestyle=":")
        axis.plot(t, s, "o", color=colour, markersize=8)
        axis.annotate(f"{name}, L = {loss:g}", (t, s), (10, -4), textcoords="offset points", color=colour, va="top")
    for height, text in ((mu + reach, "μ + ς̄τ"), (mu, "μ"), (mu - reach, "μ − ς̄τ")):
        axis.annotate(text, (6, height), (4, 0), textcoords="offset points", va="center", annotation_clip=False)
    axis.set(xlabel="θ (learned)", ylabel="s (log-variance)  ↔  log L", xlim=(-6, 6), title="The chart of one batch")
    return figure


def scale() -> Figure:
    """Plot each task's share of weight × loss as one loss grows, after as many steps as the paper's runs have."""
    losses = torch.tensor([1.2, 0.6, 0.25], dtype=torch.float64)
    factors = np.geomspace(1, 1000, 16)
    names = {"bpgs": "BPGS", "kendall": "Kendall", "uw-so": "UW-SO", "uw-o": "UW-O"}
    figure = Figure(figsize=(8.4, 2.7), layout="constrained")
    for axis, (name, title) in zip(figure.subplots(1, 4, sharey=True), names.items(), strict=True):
        scaled = losses * torch.stack([torch.tensor([f, 1.0, 1.0]) for f in factors])
        balancer = cp.make(name, list(TASKS), batch_shape=(len(factors),)).double()
        weights = train_weights(balancer, lambda step, scaled=scaled: scaled, STEPS)[-1]  # type: ignore[misc]
        shares = weights * scaled / (weights * scaled).sum(-1, keepdim=True)
        for share, task, colour, dash in zip(shares.T, TASKS, COLOURS, DASHES, strict=True):
            axis.plot(factors, 100 * share, dash, color=colour, label=task, linewidth=2)
        axis.set(xscale="log", title=title, xlabel="factor on seg", ylim=(-3, 103))
        axis.set_xticks([1, 10, 100, 1000], ["×1", "×10", "×100", "×1000"])
        axis.minorticks_off()
    figure.axes[0].set_ylabel("share of weight × loss, %")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def follow() -> Figure:
    """Plot the weights on noisy losses, one of which grows by a factor of 30."""
    stream = torch.Generator().manual_seed(0)
    noise = (0.25 * torch.randn(900, 3, generator=stream, dtype=torch.float64)).exp()
    losses = torch.tensor([1.2, 0.6, 0.25], dtype=torch.float64) * noise
    losses[300:, 2] *= 30
    balancers: dict[str, Callable[[], cp.Balancer]] = {
        "UW-O, normalised": lambda: cp.UWO(list(TASKS), normalise=True),
        "BPGS": lambda: cp.BPGS(list(TASKS)),
    }
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    for axis, (title, build) in zip(figure.subplots(1, 2, sharey=True), balancers.items(), strict=True):
        weights = torch.stack(train_weights(build().double(), lambda step: losses[step], len(losses)))
        for column, task, colour in zip(weights.T, TASKS, COLOURS, strict=True):
            axis.plot(range(0, 900, 6), column[::6], color=colour, label=task, linewidth=1)
        axis.axvline(300, color="#333333", linestyle="--", linewidth=0.8)
        axis.annotate("normals × 30", (300, 1.0), (5, -2), textcoords="offset points", va="top")
        axis.set(title=title, xlabel="step", ylim=(0, 1))
    figure.axes[0].set_ylabel("weight")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def train_weights(balancer: cp.Balancer, losses: Callable[[int], torch.Tensor], steps: int) -> list[torch.Tensor]:
    """Return the weights of every step while Adam trains the balancer on given losses."""
    parameters = list(balancer.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LR) if parameters else None
    history = []
    for step in range(steps):
        objective = balancer(losses(step).clone().requires_grad_())
        assert balancer.weights is not None
        history.append(balancer.weights)
        if optimizer is not None:
            optimizer.zero_grad()
            objective.sum().backward()
            optimizer.step()
    return history


def directions() -> Figure:
    """Plot the directions of six methods for two conflicting gradients, then with one loss multiplied by ten."""
    gradients = torch.tensor([[1.0, 0.0], [-0.6, 0.8]], dtype=torch.float64)
    methods: dict[str, tuple[Callable[[], cp.Balancer], str, str]] = {
        "sum": (lambda: cp.Static(2), "#777777", "-"),
        "PCGrad": (lambda: cp.PCGrad(2), "#CC79A7", "-"),
        "MGDA": (lambda: cp.MGDA(2), "#882255", "-"),
        "Nash-MTL": (lambda: cp.NashMTL(2), "#0072B2", "-"),
        "IMTL-G": (lambda: cp.IMTLG(2), "#E69F00", "--"),
        "BPGS + PCGrad": (lambda: cp.PCGrad(2, weighting=cp.BPGS(2)), "#009E73", ":"),
    }
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    for axis, factor in zip(figure.subplots(1, 2), (1.0, 10.0), strict=True):
        rows = gradients * torch.tensor([[1.0], [factor]])
        for name, row in zip(("g₁", "g₂"), rows, strict=True):
            tip = row / max(row.norm().item(), 1) * (1.0 if row.norm() <= 1 else 1.35)
            draw_arrow(axis, tip, "#222222", width=2.2)
            label = name if row.norm() <= 1 else f"{name} (× {factor:g}, not to scale)"
            axis.annotate(label, (tip[0].item(), tip[1].item()), (4, 4), textcoords="offset points", color="#222222")
        for name, (build, colour, dash) in methods.items():
            d = direction(build(), rows)
            tip = 1.15 * d / d.norm()
            axis.plot([0, tip[0]], [0, tip[1]], dash, color=colour, linewidth=2.4, label=name)
            axis.plot(*tip, "o", color=colour, markersize=4)
        axis.set(xlim=(-1.15, 1.25), ylim=(-0.1, 1.4), aspect="equal", xticks=[], yticks=[])
        axis.set_title("equal scale" if factor == 1 else "loss of task 2 × 10")
        axis.grid(visible=False)
        axis.spines[["left", "bottom"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6)
    return figure


def direction(balancer: cp.Balancer, rows: torch.Tensor) -> torch.Tensor:
    """Return the direction of a balancer for given task gradients."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    losses = rows @ x + rows.norm(dim=1)  # proportional to the gradients: a factor multiplies both
    balancer.double().backward(list(losses), shared=[x])
    assert x.grad is not None
    return x.grad


def draw_arrow(axis: Axes, tip: torch.Tensor, colour: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", (tip[0].item(), tip[1].item()), (0, 0), arrowprops=style)


def pinn_fields() -> Figure:
    """Plot the recorded solutions of the Helmholtz equation by three methods, and their errors."""
    record = json.loads(PINNS.read_text(encoding="utf-8"))
    axis_points = np.linspace(-1, 1, record["size"])
    exact = np.outer(np.sin(np.pi * axis_points), np.sin(4 * np.pi * axis_points))
    titles = {"`cp.Static`, the plain sum": "plain sum", "`cp.BPGS`": "BPGS", "`cp.LRA`": "LRA"}
    found = {"exact solution": exact}
    for name, values in record["solution"].items():
        error = record["table"][name][0][-1]  # at the first seed, after L-BFGS
        found[f"{titles[name]}: error {error:.2g}"] = np.array(values) / 100
    figure = Figure(figsize=(8.4, 4.3), layout="constrained")
    axes = figure.subplots(2, 4, sharex=True, sharey=True)
    for column, (title, u) in enumerate(found.items()):
        rows = ((u, "RdBu_r", -1.1, 1.1), (abs(u - exact), "magma_r", 0.0, 1.0))
        for axis, (values, colours, least, most) in zip(axes[:, column], rows, strict=True):
            options: dict[str, Any] = {"extent": (-1, 1, -1, 1), "origin": "lower", "interpolation": "none"}
            axis.imshow(values.T, cmap=colours, vmin=least, vmax=most, **options)
            axis.grid(visible=False)
            axis.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axes[0, column].set_title(title)
    axes[1, 0].set_visible(False)
    axes[0, 0].set_ylabel("solution u")
    axes[1, 1].set_ylabel("absolute error")
    axes[1, 1].tick_params(labelleft=True)
    axes[0, 0].tick_params(labelbottom=True)
    for row in (0, 1):
        figure.colorbar(axes[row, 3].images[0], ax=axes[row, :], aspect=14, shrink=0.9)
    return figure


def pinn_collapse() -> Figure:
    """Plot recorded losses and gradient norms of the Helmholtz problem with BPGS, and the weights of three methods."""
    record = json.loads(PINNS.read_text(encoding="utf-8"))
    curves = {name[4:-1]: np.array(rows).T for name, rows in record["curves"].items()}  # without `cp.`
    steps = record["every"] * np.arange(curves["BPGS"].shape[1])
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    losses, norms, weights = figure.subplots(1, 3)
    residual, boundary, _, boundary_norm, _ = curves["BPGS"]
    for values, name, colour, dash in zip(
        (residual, boundary), ("residual", "boundary"), COLOURS, DASHES, strict=False
    ):
        losses.plot(steps, values, dash, color=colour, linewidth=1.6, label=name)
    losses.set(title="BPGS: losses", xlabel="step", yscale="log")
    losses.legend(loc="center right")
    norms.plot(boundary, boundary_norm, ".", color=COLOURS[1], markersize=4, label="measured")
    ends = np.array([boundary.min(), boundary.max()])
    scale = np.median(boundary_norm / np.sqrt(boundary))
    norms.plot(ends, scale * np.sqrt(ends), color="#333333", linewidth=1, label="∝ √L")
    norms.set(title="BPGS: ‖∇L‖ of the boundary", xlabel="boundary loss L", xscale="log", yscale="log")
    norms.legend(loc="lower right")
    for (name, rows), colour in zip(curves.items(), COLOURS, strict=True):
        weights.plot(steps, rows[4], color=colour, linewidth=1.6, label=name)
    weights.set(title="weight of boundary / residual", xlabel="step", yscale="log")
    weights.legend(loc="best")
    for axis in figure.axes:
        axis.minorticks_off()
    return figure


def cost_growth() -> Figure:
    """Plot the recorded time of a step by number of tasks and by number of parameters, for three ways to compute it."""
    rows = json.loads(PASSES.read_text(encoding="utf-8"))["rows"]
    cases = {
        "torchjd, autogram": "TorchJD autogram",
        "UPGrad, loop": "loop",
        "UPGrad, lean": "lean",
    }
    colours = ("#8250A8", "#D55E00", "#0072B2")
    figure = Figure(figsize=(7.6, 2.9), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axis, key, fixed in zip(panels, ("T", "parameters"), ({"width": 256}, {"T": 16}), strict=True):
        chosen = [row for row in rows if all(row[name] == value for name, value in fixed.items())]
        for (case, label), colour, marker in zip(cases.items(), colours, "sDo", strict=True):
            points = sorted((row[key], row["ratio"]) for row in chosen if row["case"] == case)
            axis.plot(*zip(*points, strict=True), f"{marker}-", color=colour, linewidth=1.5, markersize=4, label=label)
        axis.set(xscale="log", yscale="log")
        axis.set_yticks([2, 4, 8, 16], ["2 ×", "4 ×", "8 ×", "16 ×"])
        axis.minorticks_off()
    panels[0].set(title="0.2 million parameters", xlabel="tasks", ylabel="time relative to a plain step")
    panels[0].set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
    panels[1].set(title="16 tasks", xlabel="shared parameters")
    panels[1].legend(loc="upper left")
    return figure


def learned_worlds() -> Figure:
    """Plot eleven methods relative to the plain sum in each world."""
    methods = (
        *("Nash-MTL", "CAGrad", *RECOMMENDED, "Gradient normalisation", "FAMO", "UW-O", "First loss"),
        *("BPGS", "Kendall", "UW-SO"),
    )
    return render(reflow(overview(list(recorded_board().values()), methods)))


def learned_cost() -> Figure:
    """Plot scores against the cost of a step in each world."""
    return render(reflow(frontier(list(recorded_board().values()), recorded_costs())))


def qm9() -> Figure:
    """Plot Δm against the epoch and the errors of the main methods on QM9."""
    recorded = Recorded(ARCHIVE)
    main = next(condition for condition in STUDY.conditions if condition.key == MAIN)
    scores, histories = (frame[frame["condition"] == MAIN] for frame in (recorded.scores, recorded.histories))
    spec = curves_and_errors(STUDY, main, scores, histories)
    assert spec is not None
    return render(spec)


FIGURES: dict[str, Callable[[], Figure]] = {
    "score-light": score_by_factor,
    "score-dark": lambda: score_by_factor(dark=True),
    "chart": chart,
    "scale": scale,
    "follow": follow,
    "directions": directions,
    "pinn-fields": pinn_fields,
    "pinn-collapse": pinn_collapse,
    "cost-growth": cost_growth,
    "qm9": qm9,
    "learned-worlds": learned_worlds,
    "learned-cost": learned_cost,
}


def draw(folder: Path) -> list[Path]:
    """Write every figure as SVG. The files do not depend on the time at which they are drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in FIGURES.items():
        written.append(folder / f"{name}.svg")
        with mpl.rc_context({**STYLE, **(DARK if name.endswith("dark") else {})}):
            plot().savefig(written[-1], metadata={"Date": None}, transparent=name.startswith("score"))
        written[-1].write_text(compact(written[-1].read_text(encoding="utf-8")), encoding="utf-8")
    return written


def compact(svg: str) -> str:
    """Round coordinates to a tenth of a point and drop metadata and comments."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<\?xml.*?\?>|<!DOCTYPE.*?>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{2,}", _shorten, tag[0]), svg)  # not the text between tags
    return re.sub(r"\s*\n\s*", "\n", svg).strip() + "\n"


def _shorten(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


if __name__ == "__main__":
    for path in draw(FOLDER):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
