"""The pictures of the documentation, drawn from the library itself: python docs/figures.py."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import counterpoise as cp
from counterpoise.lab.report.figures.rendering import RC

FOLDER = Path(__file__).parent / "figures"
TASKS = ("seg", "depth", "normals")
COLOURS = ("#0072B2", "#D55E00", "#00845F")  # of the tasks, as in the atlas
DASHES = ("-", "--", ":")
LR, STEPS = 3e-3, 480  # as in the paper's synthetic runs


def chart() -> Figure:
    """The sigmoid of θ into the interval around the mean log-loss, and the tasks of one batch on it."""
    losses = torch.tensor([1.2, 60.0, 0.05], dtype=torch.float64)
    balancer = cp.BPGS(list(TASKS)).double()
    balancer(losses)
    at = balancer.chart
    assert at is not None
    mu, reach = at.mu.item(), at.width.item() / 2
    theta = torch.linspace(-6, 6, 200, dtype=torch.float64)
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
    """Each task's share of weight × loss as one loss grows, after as many steps as the paper's runs have."""
    losses = torch.tensor([1.2, 0.6, 0.25], dtype=torch.float64)
    factors = np.geomspace(1, 1000, 31)
    names = {"bpgs": "BPGS", "kendall": "Kendall", "uw-so": "UW-SO", "uw-o": "UW-O"}
    figure = Figure(figsize=(8.4, 2.7), layout="constrained")
    for axis, (name, title) in zip(figure.subplots(1, 4, sharey=True), names.items(), strict=True):
        now = losses * torch.stack([torch.tensor([f, 1.0, 1.0]) for f in factors])
        balancer = cp.make(name, list(TASKS), batch_shape=(len(factors),)).double()
        weights = trained(balancer, lambda step, now=now: now, STEPS)[-1]  # type: ignore[misc]
        shares = weights * now / (weights * now).sum(-1, keepdim=True)
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
    """Weights on noisy losses, one of which grows by a factor of 30."""
    stream = torch.Generator().manual_seed(0)
    noise = (0.25 * torch.randn(900, 3, generator=stream, dtype=torch.float64)).exp()
    losses = torch.tensor([1.2, 0.6, 0.25], dtype=torch.float64) * noise
    losses[300:, 2] *= 30
    kinds: dict[str, Callable[[], cp.Balancer]] = {
        "UW-O, normalised": lambda: cp.UWO(list(TASKS), normalise=True),
        "BPGS": lambda: cp.BPGS(list(TASKS)),
    }
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    for axis, (title, build) in zip(figure.subplots(1, 2, sharey=True), kinds.items(), strict=True):
        weights = torch.stack(trained(build().double(), lambda step: losses[step], len(losses)))
        for column, task, colour in zip(weights.T, TASKS, COLOURS, strict=True):
            axis.plot(range(0, 900, 3), column[::3], color=colour, label=task, linewidth=1)
        axis.axvline(300, color="#333333", linestyle="--", linewidth=0.8)
        axis.annotate("normals × 30", (300, 1.0), (5, -2), textcoords="offset points", va="top")
        axis.set(title=title, xlabel="step", ylim=(0, 1))
    figure.axes[0].set_ylabel("weight")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def trained(balancer: cp.Balancer, losses: Callable[[int], torch.Tensor], steps: int) -> list[torch.Tensor]:
    """The weights of every step; what is learned is trained by Adam on losses that nothing else moves."""
    parameters = list(balancer.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LR) if parameters else None
    found = []
    for step in range(steps):
        objective = balancer(losses(step))
        assert balancer.weights is not None
        found.append(balancer.weights)
        if optimizer is not None:
            optimizer.zero_grad()
            objective.sum().backward()
            optimizer.step()
    return found


def directions() -> Figure:
    """Two conflicting gradients in the plane, and where methods go; then with one loss times ten."""
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
        for name, colour in (("g₁", "#222222"), ("g₂", "#222222")):
            row = rows[0 if name == "g₁" else 1]
            tip = row / max(row.norm().item(), 1) * (1.0 if row.norm() <= 1 else 1.35)
            arrow(axis, tip, colour, width=2.2)
            label = name if row.norm() <= 1 else f"{name} (× {factor:g}, cut short)"
            axis.annotate(label, (tip[0].item(), tip[1].item()), (4, 4), textcoords="offset points", color=colour)
        for name, (build, colour, dash) in methods.items():
            d = direction(build(), rows)
            tip = 1.15 * d / d.norm()
            axis.plot([0, tip[0]], [0, tip[1]], dash, color=colour, linewidth=2.4, label=name)
            axis.plot(*tip, "o", color=colour, markersize=4)
        axis.set(xlim=(-1.15, 1.25), ylim=(-0.1, 1.4), aspect="equal", xticks=[], yticks=[])
        axis.set_title("one scale" if factor == 1 else "the loss of task 2 × 10")
        axis.grid(visible=False)
        axis.spines[["left", "bottom"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6)
    return figure


def direction(balancer: cp.Balancer, rows: torch.Tensor) -> torch.Tensor:
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    losses = rows @ x + rows.norm(dim=1)  # losses in proportion to their gradients: a factor multiplies both
    balancer.double().backward(list(losses), shared=[x])
    assert x.grad is not None
    return x.grad


def arrow(axis: Axes, tip: torch.Tensor, colour: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", (tip[0].item(), tip[1].item()), (0, 0), arrowprops=style)


FIGURES = {"chart": chart, "scale": scale, "follow": follow, "directions": directions}


def draw(folder: Path) -> list[Path]:
    """Draws every figure: the same bytes each time, whenever it is drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context({**RC, "svg.fonttype": "path"}):
        for name, make in FIGURES.items():
            written.append(folder / f"{name}.svg")
            make().savefig(written[-1], metadata={"Date": None})
    return written


if __name__ == "__main__":
    for path in draw(FOLDER):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
