"""Which data sets the data folder contains, and how to get the others."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .fetch import FETCHABLE
from .qm9 import FILE as QM9_FILE
from .tabular import CATALOGUE, MULTI_LABEL, MULTI_TARGET, CatalogueEntry, find_files

VARIABLE = "COUNTERPOISE_DATA"


@dataclass(frozen=True)
class DataSource:
    """A data set that studies read from disk.

    Args:
        name: Name of the data set.
        description: What it contains.
        is_in: Returns whether a data folder contains it.
        instructions: How to get it.
    """

    name: str
    description: str
    is_in: Callable[[Path], bool]
    instructions: str


def _tabular_source(entry: CatalogueEntry) -> DataSource:
    first, *others = (" and ".join(f"{name}.arff" for name in names) for names in entry.files)
    origin = MULTI_LABEL if entry.kind == "binary" else MULTI_TARGET
    return DataSource(
        entry.name,
        f"{entry.description}, {entry.targets} targets, {' + '.join(map(str, entry.rows))} rows",
        lambda folder: find_files(entry, folder) is not None,
        f"put {first}{''.join(f', or {other}' for other in others)} (or .gz) into {entry.folder}/, from {origin}"
        + (f"; or run: counterpoise data fetch {entry.name}" if entry.name in FETCHABLE else ""),
    )


def _has_nyuv2(folder: Path) -> bool:
    files = ("nyuv2_288x384.zip", "nyu_depth_v2_labeled.mat", "train/image/0.npy")
    return any((folder / "nyuv2" / file).exists() for file in files)


SOURCES = (
    *map(_tabular_source, CATALOGUE.values()),
    DataSource(
        "nyuv2",
        "indoor images, 795 + 654 images",
        _has_nyuv2,
        "put nyuv2_288x384.zip (written by counterpoise data pack nyuv2), nyu_depth_v2_labeled.mat with its maps, or "
        "the preprocessed 288 × 384 .npy folders train/ and val/ into nyuv2/ (docs/nyuv2.md)",
    ),
    DataSource(
        "qm9",
        "properties of molecules, 11 targets, 130831 molecules",
        lambda folder: (folder / QM9_FILE).exists(),
        f"run: pip install 'counterpoise[qm9]', then: counterpoise data pack qm9; or put {QM9_FILE.name} into "
        f"{QM9_FILE.parent}/. The data are those of https://doi.org/10.1038/sdata.2014.22, from the package qm9pack",
    ),
)


def data_folder(given: Path | None = None) -> Path | None:
    """Return the given folder, or else that of the environment variable COUNTERPOISE_DATA, or None."""
    if given is not None:
        return given
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def is_present(source: DataSource, folder: Path | None) -> bool:
    """Return whether the data folder contains a data set."""
    return folder is not None and source.is_in(folder)
