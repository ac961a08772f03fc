"""One colour and one marker for each method, in every figure, safe for colour-blind eyes (Okabe and Ito; Tol)."""

from typing import Any

MARKS: dict[str, dict[str, Any]] = {
    "Static": {"color": "#777777", "marker": "."},
    "GradNormProxy": {"color": "#332288", "marker": ">"},
    "BPGS": {"color": "#0072B2", "marker": "o"},
    "BPGS (raw ω)": {"color": "#56B4E9", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "Kendall": {"color": "#E69F00", "marker": "s"},
    "Kendall+ℓ1": {"color": "#D55E00", "marker": "D"},
    "UWSO": {"color": "#009E73", "marker": "^"},
    "PCGrad": {"color": "#CC79A7", "marker": "v"},
    "BPGS (frozen θ)": {"color": "#222222", "marker": "o", "linestyle": ":", "markerfacecolor": "white"},
    "UW-O": {"color": "#882255", "marker": "P"},
    "ℓ1-UW-O": {"color": "#AA4499", "marker": "X"},
    "EMA-UW-O": {"color": "#44AA99", "marker": "d"},
    "IMTL-L": {"color": "#999933", "marker": "<"},
    "FAMO": {"color": "#117733", "marker": "*"},
    "CAGrad": {"color": "#AA3377", "marker": "h"},
    "Nash-MTL": {"color": "#66CCEE", "marker": "p"},
    "BPGS + PCGrad": {"color": "#004488", "marker": "8"},
    "Nash-MTL (authors)": {"color": "#4477AA", "marker": "p", "linestyle": "--", "markerfacecolor": "white"},
    "BPGS (canonical)": {"color": "#0072B2", "marker": "o"},
    "BPGS (BA-fixed)": {"color": "#56B4E9", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "BPGS (SL-auto)": {"color": "#D55E00", "marker": "D"},
    "BPGS (SL-fixed)": {"color": "#CC79A7", "marker": "D", "linestyle": "--", "markerfacecolor": "white"},
    "BPGS (clip 1)": {"color": "#0072B2", "marker": "o", "linestyle": ":"},
    "Static (clip 10)": {"color": "#777777", "marker": ".", "linestyle": ":"},
    "Kendall (clip 10)": {"color": "#E69F00", "marker": "s", "linestyle": ":"},
    "UWSO (clip 10)": {"color": "#009E73", "marker": "^", "linestyle": ":"},
    "Nash-MTL (clip 10)": {"color": "#66CCEE", "marker": "p", "linestyle": ":"},
    "Split on": {"color": "#0072B2", "marker": "o"},
    "Split off": {"color": "#D55E00", "marker": "D"},
    "Single-task": {"color": "#BBBBBB", "marker": "_"},
}

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
    return MARKS[method]


def colour(method: str) -> str:
    return str(mark(method)["color"])
