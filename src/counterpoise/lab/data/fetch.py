"""Data sets that a machine with a network can get by itself, through scikit-learn's OpenML client."""

import gzip
from pathlib import Path

import numpy as np

from ..files import write_atomic
from .arff import DataError, Matrix
from .tabular import CATALOGUE, MULTI_LABEL, content_digest

FETCHED = {"yeast": 4}
"""Name on OpenML and version there."""


def fetch(name: str, folder: Path) -> list[Path]:
    """Gets a data set, checks that its cells are the published ones, and writes its parts where `load` finds them."""
    if name not in FETCHED:
        raise DataError(f"{name!r} cannot be fetched: expected {' or '.join(FETCHED)} (counterpoise data says where)")
    entry = CATALOGUE[name]
    names, values = _from_openml(name, FETCHED[name])
    expected, found = (sum(entry.rows), entry.attributes), values.shape
    if found != expected or content_digest(values) != entry.digest:
        raise DataError(
            f"OpenML's {name}: expected {expected[0]} rows of {expected[1]} attributes in the published order "
            f"(digest {entry.digest[:16]}…), found {found[0]} rows of {found[1]} (digest "
            f"{content_digest(values)[:16]}…): nothing was written; get it from {MULTI_LABEL}"
        )
    written = []
    for stem, part in zip(entry.files[0], np.split(values, [entry.rows[0]]), strict=True):
        path = folder / entry.folder / f"{stem}.arff.gz"
        write_atomic(path, gzip.compress(_arff(name, names, part, entry.targets).encode(), mtime=0))
        written.append(path)
    return written


def _from_openml(name: str, version: int) -> tuple[list[str], Matrix]:
    """The attributes' names, and features and labels (0, 1) side by side."""
    from sklearn.datasets import fetch_openml

    try:
        found = fetch_openml(name=name, version=version, as_frame=True, parser="liac-arff", cache=False, n_retries=1)
    except Exception as error:  # no network, no server, not what was asked for: whatever the client says
        raise DataError(f"{name}: expected it from OpenML, found {type(error).__name__} ({error})") from error
    labels = found.target.astype(str).isin(["TRUE", "1"])
    cells = np.concatenate([found.data.to_numpy(dtype=np.float64), labels.to_numpy(dtype=np.float64)], 1)
    return [*found.data.columns, *found.target.columns], cells


def _arff(name: str, names: list[str], values: Matrix, labels: int) -> str:
    kinds = ["numeric"] * (len(names) - labels) + ["{0,1}"] * labels
    head = [f"@relation {name}", "", *(f"@attribute {n} {k}" for n, k in zip(names, kinds, strict=True)), "", "@data"]
    rows = [",".join([*map(repr, row[:-labels].tolist()), *(str(int(v)) for v in row[-labels:])]) for row in values]
    return "\n".join([*head, *rows, ""])
