"""List, fetch and pack the data sets that studies read from disk."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..data.fetch import FETCHABLE, fetch
from ..data.locations import SOURCES, VARIABLE, DataSource, data_folder, is_present
from ..data.nyuv2 import FILE
from ..data.nyuv2_sources import read_source, write_zip
from ..data.qm9 import FILE as QM9_FILE
from ..data.qm9_pack import PackReport, write_qm9
from ..errors import UsageError


@dataclass(frozen=True)
class DataStatus:
    """A data set and whether the data folder contains it."""

    source: DataSource
    present: bool


def list_data(folder: Path | None = None) -> list[DataStatus]:
    """Return all data sets and whether the data folder contains them.

    Args:
        folder: The data folder. Default: the environment variable COUNTERPOISE_DATA.
    """
    return [DataStatus(source, is_present(source, data_folder(folder))) for source in SOURCES]


def fetch_data(names: Iterable[str], folder: Path | None = None) -> list[Path]:
    """Download data sets into the data folder.

    Args:
        names: Names of data sets.
        folder: The data folder. Default: the environment variable COUNTERPOISE_DATA.

    Returns:
        The written files.

    Raises:
        UsageError: If no data set or no folder is given.
        DataError: If a data set cannot be fetched.
    """
    names, target = list(names), data_folder(folder)
    if not names:
        raise UsageError(f"no data set given: expected {', '.join(FETCHABLE)}")
    if target is None:
        raise UsageError(f"no data folder: set it with --data or the environment variable {VARIABLE}")
    return [path for name in names for path in fetch(name, target)]


def pack_nyuv2(source: Path | None, to: Path | None = None, *, folder: Path | None = None) -> tuple[Path, int]:
    """Convert NYUv2 to one compact zip file.

    Args:
        source: nyu_depth_v2_labeled.mat, or a folder of .npy files.
        to: The zip file. Default: in the data folder.
        folder: The data folder. Default: the environment variable COUNTERPOISE_DATA.

    Returns:
        The zip file and the number of its images.

    Raises:
        UsageError: If the source or the target is missing.
        DataError: If the source cannot be read.
    """
    target = data_folder(folder)
    to = to or (target and target / "nyuv2" / FILE)
    if source is None or to is None:
        raise UsageError(f"source or target missing: set --from, and --to or {VARIABLE}")
    images = read_source(source)
    write_zip(images, to)
    return to, len(images)


def pack_qm9(
    source: Path | None = None, to: Path | None = None, *, folder: Path | None = None
) -> tuple[Path, PackReport]:
    """Convert QM9 to one compact file. It takes a few minutes.

    Args:
        source: The folder of qm9pack's csv files. Default: that of the installed package.
        to: The file. Default: in the data folder.
        folder: The data folder. Default: the environment variable COUNTERPOISE_DATA.

    Returns:
        The file, and how the bonds of the molecules were found.

    Raises:
        UsageError: If the target is missing.
        DataError: If the source cannot be read, or is not QM9.
    """
    target = data_folder(folder)
    to = to or (target and target / QM9_FILE)
    if to is None:
        raise UsageError(f"target missing: set --to, --data or {VARIABLE}")
    return to, write_qm9(source, to)
