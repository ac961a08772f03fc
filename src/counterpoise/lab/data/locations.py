"""Which data sets lie on this machine, and how to get those that do not."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .fetch import FETCHED
from .tabular import CATALOGUE, MULTI_LABEL, MULTI_TARGET, Catalogued, find

VARIABLE = "COUNTERPOISE_DATA"


@dataclass(frozen=True)
class Source:
    """A data set that studies read from disk."""

    name: str
    what: str
    here: Callable[[Path], bool]  # whether it lies in this data folder
    get: str


def _tabular(entry: Catalogued) -> Source:
    ways = [[f"{entry.folder}/{name}.arff" for name in names] for names in entry.files]
    first, *others = (" and ".join(Path(path).name for path in way) for way in ways)
    where = MULTI_LABEL if entry.kind == "binary" else MULTI_TARGET
    return Source(
        entry.name,
        f"{entry.what}, {entry.targets} targets, {' + '.join(map(str, entry.rows))} rows",
        lambda folder: find(entry, folder) is not None,
        f"{first}{''.join(f', or {other}' for other in others)} (or .gz) into {entry.folder}/ from {where}"
        + (f"; or: counterpoise data fetch {entry.name}" if entry.name in FETCHED else ""),
    )


def _nyuv2(folder: Path) -> bool:
    files = ("nyuv2_288x384.zip", "nyu_depth_v2_labeled.mat", "train/image/0.npy")
    return any((folder / "nyuv2" / file).exists() for file in files)


SOURCES = (
    *map(_tabular, CATALOGUE.values()),
    Source(
        "nyuv2",
        "indoor scenes, 795 + 654 images",
        _nyuv2,
        "nyuv2_288x384.zip (made by counterpoise data pack nyuv2), nyu_depth_v2_labeled.mat with its maps, or "
        "the preprocessed 288 × 384 .npy folders train/ and val/ into nyuv2/ (docs/nyuv2.md)",
    ),
)


def data_folder(given: Path | None = None) -> Path | None:
    """The folder that was named: by the caller, or by the environment variable COUNTERPOISE_DATA."""
    if given is not None:
        return given
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def present(source: Source, folder: Path | None) -> bool:
    return folder is not None and source.here(folder)
