"""Write the tables of peers.md: what each method of TorchJD and LibMTL is called here, or why it is missing.

    python docs/peers.py    # with TorchJD installed

The names of TorchJD are those that its public modules export. LibMTL is not a dependency: its names are listed below.
"""

import inspect
import re
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torchjd.aggregation
import torchjd.scalarization

import counterpoise as cp

PAGE = Path(__file__).parent / "peers.md"

LIBMTL_VERSION = "1.1.5"
LIBMTL_RELEASED = (
    *("EW", "GradNorm", "MGDA", "UW", "DWA", "GLS", "GradDrop", "PCGrad", "GradVac", "IMTL", "CAGrad", "RLW"),
)
"""Classes of `LibMTL.weighting` in the wheel of PyPI, without the base class."""

LIBMTL_COMMIT = "4d195c0"
LIBMTL_REPOSITORY = (
    *("Nash_MTL", "MoCo", "Aligned_MTL", "DB_MTL", "STCH", "ExcessMTL", "FairGrad", "FAMO", "MoDo", "SDMGrad"),
    *("UPGrad", "AutoLambda", "MOML", "FORUM"),
)
"""What its repository adds: classes of `LibMTL.weighting`, and the last three in `LibMTL/trainer.py`."""

REMARKS = {
    "Constant": ("cp.Static(tasks, weights=…)", "fixed weights"),
    "Mean": ("cp.Static(T, weights=[1 / T] * T)", "the sum divided by T"),
    "Sum": ("cp.Static", ""),
    "EW": ("cp.Static", "equal weights"),
    "Random": ("cp.RLW", "softmax of normal draws"),
    "UW": ("cp.Kendall", "learned log-variances"),
    "CRMOGM": ("cp.CRMOGM", "wraps another method in both libraries"),
    "MOML": (
        "",
        "trains a copy of the model on one half of the batch and the weights on the other, which a trainer that owns "
        "the loop and the data loaders can do; `cp.AutoLambda` is the bilevel method for a loop of your own",
    ),
    "FORUM": ("", "as MOML, with first-order updates of the weights"),
}
"""Name in the other library → what it is here, and a remark; all other names are the same in our registry."""


class Row(NamedTuple):
    """One method of another library: its names there, our class (empty if missing) and a remark."""

    theirs: str
    ours: str
    remark: str


def exported(module: object) -> list[str]:
    """Return the methods that a module of TorchJD exports, without base classes."""
    kinds = {name: getattr(module, name) for name in module.__all__}  # type: ignore[attr-defined]
    parents = {base for kind in kinds.values() for base in inspect.getmro(kind)[1:]}
    return [name for name, kind in kinds.items() if kind not in parents]


def row(names: list[str]) -> Row:
    """Return the row of a method; the registry ignores case and punctuation, so that Nash_MTL is nash-mtl."""
    method = names[0].removesuffix("Weighting")
    ours, remark = REMARKS.get(method) or (f"cp.{cp.describe(method).build.__name__}", "")
    return Row(", ".join(f"`{name}`" for name in names), ours, remark)


def torchjd_rows(module: object) -> list[Row]:
    """Return a row for each method of a module of TorchJD; an aggregator and its weighting share one."""
    grouped: dict[str, list[str]] = {}
    for name in exported(module):
        grouped.setdefault(name.removesuffix("Weighting"), []).append(name)
    return [row(group) for group in grouped.values()]


def tables() -> dict[str, str]:
    """Return the tables of the page by marker."""
    rows = {
        "aggregators": torchjd_rows(torchjd.aggregation),
        "scalarisers": torchjd_rows(torchjd.scalarization),
        "libmtl": [row([name]) for name in LIBMTL_RELEASED],
        "libmtl repository": [row([name]) for name in LIBMTL_REPOSITORY],
    }
    sources = {
        "aggregators": f"`torchjd.aggregation` {version('torchjd')}",
        "scalarisers": f"`torchjd.scalarization` {version('torchjd')}",
        "libmtl": f"`LibMTL.weighting` {LIBMTL_VERSION}",
        "libmtl repository": f"repository of LibMTL ({LIBMTL_COMMIT})",
    }
    return {name: _table(sources[name], found) for name, found in rows.items()} | {"ours": _only_here(rows)}


def write() -> None:
    """Insert the tables between the markers of the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        markers = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = markers.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")


def _table(source: str, rows: list[Row]) -> str:
    lines = [f"| {source} | Counterpoise | remark |", "| --- | --- | --- |"]
    lines += [f"| {theirs} | {f'`{ours}`' if ours else 'no'} | {remark or '–'} |" for theirs, ours, remark in rows]
    return "\n".join(lines)


def _only_here(rows: dict[str, list[Row]]) -> str:
    """Return the methods of our registry that occur in no other table, by space."""
    theirs = {re.split(r"[.(]", found.ours)[1] for part in rows.values() for found in part if found.ours}
    lines = ["| space | only in Counterpoise |", "| --- | --- |"]
    for space in ("loss", "scale", "gradient"):
        classes = [cp.describe(name).build.__name__ for name in cp.methods(space)]
        lines.append(f"| {space} | {', '.join(f'`cp.{name}`' for name in classes if name not in theirs)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    write()
