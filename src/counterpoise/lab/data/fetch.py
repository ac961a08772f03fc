"""Download data sets with scikit-learn's OpenML client."""

import gzip
from pathlib import Path

import numpy as np

from ..errors import DataError
from ..files import write_atomic
from .arff import Matrix
from .tabular import CATALOGUE, MULTI_LABEL, content_digest

FETCHABLE = {"yeast": 4}
"""Names of the data sets and their versions on OpenML."""


def fetch(name: str, folder: Path) -> list[Path]:
    """Download a data set, check that its cells are the published ones, and write its files into the data folder.

    Raises:
        DataError: If the data set cannot be downloaded or differs from the published one.
    """
    if name not in FETCHABLE:
        hint = "counterpoise data lists how to get the others"
        raise DataError(f"{name!r} cannot be fetched: expected {' or '.join(FETCHABLE)} ({hint})")
    entry = CATALOGUE[name]
    names, values = _from_openml(name, FETCHABLE[name])
    expected, shape = (sum(entry.rows), entry.attributes), values.shape
    if shape != expected or content_digest(values) != entry.digest:
        raise DataError(
            f"OpenML's {name}: expected {expected[0]} rows of {expected[1]} attributes in the published order "
            f"(digest {entry.digest[:16]}…), found {shape[0]} rows of {shape[1]} (digest "
            f"{content_digest(values)[:16]}…): nothing was written; download it from {MULTI_LABEL}"
        )
    written = []
    for stem, part in zip(entry.files[0], np.split(values, [entry.rows[0]]), strict=True):
        path = folder / entry.folder / f"{stem}.arff.gz"
        write_atomic(path, gzip.compress(_arff(name, names, part, entry.targets).encode(), mtime=0))
        written.append(path)
    return written


def _from_openml(name: str, version: int) -> tuple[list[str], Matrix]:
    """Return the names of the attributes, and the features and labels (0, 1) in one matrix."""
    from sklearn.datasets import fetch_openml

    try:
        found = fetch_openml(name=name, version=version, as_frame=True, parser="liac-arff", cache=False, n_retries=1)
    except Exception as error:  # the client raises different errors without a network or a server
        raise DataError(f"{name}: cannot download it from OpenML, {type(error).__name__} ({error})") from error
    labels = found.target.astype(str).isin(["TRUE", "1"])
    cells = np.concatenate([found.data.to_numpy(dtype=np.float64), labels.to_numpy(dtype=np.float64)], 1)
    return [*found.data.columns, *found.target.columns], cells


def _arff(name: str, names: list[str], values: Matrix, labels: int) -> str:
    kinds = ["numeric"] * (len(names) - labels) + ["{0,1}"] * labels
    head = [f"@relation {name}", "", *(f"@attribute {n} {k}" for n, k in zip(names, kinds, strict=True)), "", "@data"]
    rows = [",".join([*map(repr, row[:-labels].tolist()), *(str(int(v)) for v in row[-labels:])]) for row in values]
    return "\n".join([*head, *rows, ""])
