"""One colour and one marker for each method, in every figure; the colours are Okabe and Ito's, safe for all eyes."""

from typing import Any

MARKS: dict[str, dict[str, Any]] = {
    "BPGS": {"color": "#0072B2", "marker": "o"},
    "BPGS (raw ω)": {"color": "#56B4E9", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "Kendall": {"color": "#E69F00", "marker": "s"},
    "Kendall+ℓ1": {"color": "#D55E00", "marker": "D"},
    "UWSO": {"color": "#009E73", "marker": "^"},
    "PCGrad": {"color": "#CC79A7", "marker": "v"},
}
OTHER = {"color": "#666666", "marker": "x"}

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "counterpoise",  # the same figure is the same file
    "figure.dpi": 150,
}


def mark(method: str) -> dict[str, Any]:
    return MARKS.get(method, OTHER)


def colour(method: str) -> str:
    return str(mark(method)["color"])
