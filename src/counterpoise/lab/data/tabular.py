"""The seventeen tabular data sets: their catalogue, reading, checking and splitting."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from . import arff
from .arff import Matrix, Table

MULTI_LABEL = "Mulan's multi-label data sets, https://mulan.sourceforge.net/datasets-mlc.html"
MULTI_TARGET = "Mulan's multi-target data sets, https://mulan.sourceforge.net/datasets-mtr.html"

FOLDS = 5
HELD_OUT = 0.2  # share of the training rows that is used for early stopping

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A published data set.

    Args:
        name: Name of the data set.
        description: What it contains.
        rows: Number of training and test rows, or of all rows if there is no published split.
        attributes: Number of columns.
        targets: Number of targets, which are the last columns.
        digest: Digest of the cells, which identifies a copy in any file format.
        kind: Loss of the tasks.
        folder: Subfolder of the data folder.
        ordered: Whether the rows are a time series.
    """

    name: str
    description: str
    rows: tuple[int, ...]
    attributes: int
    targets: int
    digest: str
    kind: Literal["binary", "squared"] = "squared"
    folder: str = "mtr"
    ordered: bool = False

    @property
    def files(self) -> tuple[tuple[str, ...], ...]:
        """Alternative sets of file names: the whole data set in one file, or its two parts."""
        parts = (f"{self.name}-train", f"{self.name}-test")
        whole = ((self.name,),)
        return (parts,) if self.name == "yeast" else (*whole, parts) if len(self.rows) == 2 else whole


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            "yeast", "gene functions", (1500, 917), 117, 14, "520ef905eac2353d4f0810029eabaaa9", "binary", "yeast"
        ),
        CatalogueEntry(
            "rf1", "river flow", (4108, 5017), 72, 8, "e63f8b9b020cf8e29366927690894596", folder="rf1", ordered=True
        ),
        CatalogueEntry("andro", "water quality of a gulf", (49,), 36, 6, "9765ac751be2f11c10fb5e35ca2afc2d"),
        CatalogueEntry("atp1d", "airline ticket prices, next day", (337,), 417, 6, "4becc1b8f9f423dba3e51b3388318ac0"),
        CatalogueEntry(
            "atp7d", "airline ticket prices, seven days", (296,), 417, 6, "a71b0c281dad314e3584cafd91de2563"
        ),
        CatalogueEntry("edm", "electrical discharge machining", (154,), 18, 2, "370f1924becb9f9cc0d2481de55b521a"),
        CatalogueEntry("enb", "energy loads of buildings", (768,), 10, 2, "ad936b2955910b98b0a86daadfe901c1"),
        CatalogueEntry("jura", "metals in the soil", (359,), 18, 3, "8f1bd53a3818b7ba2e8b07f4252ebf9e"),
        CatalogueEntry("oes10", "employment by occupation, 2010", (403,), 314, 16, "59e153b1301125fc7a928a7efe060df7"),
        CatalogueEntry("oes97", "employment by occupation, 1997", (334,), 279, 16, "cc50f81705ec44302138241597f375a6"),
        CatalogueEntry("osales", "online product sales", (639,), 413, 12, "96124e5196070f6f21b65f7b16830e36"),
        CatalogueEntry("scpf", "reports to a city", (1137,), 26, 3, "478226771deeeda87afa6604b12145b0"),
        CatalogueEntry("sf1", "solar flares, 1969", (323,), 13, 3, "4e10db03993fbbcecd9c636262c9c6d4"),
        CatalogueEntry("sf2", "solar flares, 1978", (1066,), 13, 3, "ff09bdf13e521aab16224b25a57c1b5f"),
        CatalogueEntry("slump", "concrete", (103,), 10, 3, "62d3de21455d9482ca09612ccb7f01c2"),
        CatalogueEntry("wq", "species in rivers", (1060,), 30, 14, "22b9b2c9991d7650eed7fbb3ff199136"),
        CatalogueEntry("scm20d", "supply-chain prices", (8966,), 77, 16, "fb827f03a914ce5c9fc58d3a16f96f3a"),
    )
}


@dataclass(frozen=True, slots=True)
class Tabular:
    """A data set in memory. Nominal features are one-hot encoded, and missing cells are NaN. Targets are complete."""

    entry: CatalogueEntry
    x: Matrix
    y: Matrix
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers for training, early stopping and testing."""

    train: Rows
    validation: Rows
    test: Rows


def find_files(entry: CatalogueEntry, folder: Path | None) -> list[Path] | None:
    """Return the files of a data set in the data folder, or None."""
    if folder is None:
        return None
    for names in entry.files:
        paths = [_existing(folder / entry.folder / name) for name in names]
        if all(path is not None for path in paths):
            return [path for path in paths if path is not None]
    return None


def _existing(stem: Path) -> Path | None:
    choices = (stem.with_name(f"{stem.name}.arff{suffix}") for suffix in (".gz", ""))
    return next((path for path in choices if path.exists()), None)


def load(name: str, folder: Path | None) -> Tabular:
    """Load a data set by name.

    Raises:
        DataError: If a file is missing, truncated, altered, or another data set.
    """
    entry = CATALOGUE[name]
    paths = find_files(entry, folder)
    if paths is None:
        expected = " or ".join(" + ".join(f"{entry.folder}/{n}.arff[.gz]" for n in names) for names in entry.files)
        raise DataError(f"{name} not found: expected {expected} in the data folder ({folder or 'not set'})")
    return _load(entry, tuple(paths), tuple(path.stat().st_mtime_ns for path in paths))


@lru_cache(maxsize=4)
def _load(entry: CatalogueEntry, paths: tuple[Path, ...], _changed: tuple[int, ...]) -> Tabular:
    tables = [arff.read(path) for path in paths]
    counts = entry.rows if len(paths) == len(entry.rows) else (sum(entry.rows),)
    for path, table, count in zip(paths, tables, counts, strict=True):
        shape = table.values.shape
        if shape != (count, entry.attributes):
            expected = f"{count} rows of {entry.attributes} attributes"
            raise DataError(f"{path}: expected {expected}, found {shape[0]} rows of {shape[1]}")
    values = np.concatenate([table.values for table in tables])
    digest = content_digest(values)
    if digest != entry.digest:
        files = " and ".join(map(str, paths))
        raise DataError(
            f"{files}: expected the published cells of {entry.name} (digest {entry.digest[:16]}…), "
            f"found others (digest {digest[:16]}…)"
        )
    return encode(entry, Table(values, tables[0].names, tables[0].categories))


def content_digest(values: Matrix) -> str:
    """Return a digest of the cells, which does not depend on compression or on the number of files."""
    return hashlib.sha256(np.where(np.isnan(values), np.nan, values).astype("<f8").tobytes()).hexdigest()[:32]


def encode(entry: CatalogueEntry, table: Table) -> Tabular:
    """Encode nominal features as one indicator per category, all NaN if the cell is missing, and targets as numbers."""
    cut = entry.attributes - entry.targets
    features = []
    for k in range(cut):
        column, count = table.values[:, k], len(table.categories[k])
        if count:
            indicators = (column[:, None] == np.arange(count)).astype(np.float64)
            features.append(np.where(np.isnan(column)[:, None], np.nan, indicators))
        else:
            features.append(column[:, None])
    targets = []
    for k in range(cut, entry.attributes):
        column, categories = table.values[:, k], table.categories[k]
        targets.append(np.array(categories, dtype=np.float64)[column.astype(np.int64)] if categories else column)
    return Tabular(entry, np.concatenate(features, 1), np.stack(targets, 1), table.names[cut:])


def published_split(entry: CatalogueEntry) -> Split:
    """Return the split of the paper, which also uses the test rows for early stopping."""
    train, test = np.arange(entry.rows[0]), np.arange(entry.rows[0], sum(entry.rows))
    return Split(train, test, test)


def fold_split(entry: CatalogueEntry, number: int) -> Split:
    """Return a fold of repeated five-fold cross-validation, or the published test rows if there are any.

    All folds have the same number of training rows, so that they can be stacked. Time series use their last fifth for
    early stopping, because random rows would be neighbours of training rows.

    Args:
        entry: The data set.
        number: Number of the fold: 0–4 in the first repetition, 5–9 in the second, and so on.
    """
    generator = np.random.default_rng([number, 2])
    if len(entry.rows) == 2:
        rest, test = np.arange(entry.rows[0]), np.arange(entry.rows[0], sum(entry.rows))
    else:
        order = np.random.default_rng([number // FOLDS, 1]).permutation(entry.rows[0])
        test = np.sort(order[number % FOLDS :: FOLDS])
        rest = np.setdiff1d(np.arange(entry.rows[0]), test)
    rest = rest if entry.ordered else generator.permutation(rest)
    count = training_rows(entry)
    return Split(rest[:count], rest[count:], test)


def training_rows(entry: CatalogueEntry) -> int:
    """Return the number of training rows of each fold."""
    rows = entry.rows[0] if len(entry.rows) == 2 else entry.rows[0] - -(-entry.rows[0] // FOLDS)
    return round((1 - HELD_OUT) * rows)


def standardise(x: Matrix, train: Sequence[int] | Rows) -> Matrix:
    """Standardise columns by mean and standard deviation (ddof 0) of their training cells. Missing cells become 0."""
    known = x[train]
    present = ~np.isnan(known)
    count = present.sum(0).clip(1)
    mean = np.where(present, known, 0.0).sum(0) / count
    sd = np.sqrt(np.square(np.where(present, known - mean, 0.0)).sum(0) / count)
    return np.where(np.isnan(x), 0.0, (x - mean) / np.where(sd > 0, sd, 1.0))
