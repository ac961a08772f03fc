"""Read ARFF files, plain or gzipped, with SciPy's parser, and cache them as .npz files."""

import gzip
import hashlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import write_atomic

CACHE_VARIABLE = "COUNTERPOISE_CACHE"
LAYOUT = 1  # version of the cache files; increase it when their layout changes

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a file as numbers.

    Args:
        values: Cells (rows, attributes). Missing cells are NaN, and nominal cells are indices of their categories.
        names: Names of the attributes.
        categories: Categories of each attribute; empty for numeric attributes.
    """

    values: Matrix
    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]


def cache_folder() -> Path:
    """Return the folder of the cache: $COUNTERPOISE_CACHE, or the user's cache folder."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "counterpoise"


def read(path: Path) -> Table:
    """Read a table, from the cache if a file with this content was parsed before.

    Raises:
        DataError: If the file is missing or cannot be parsed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected an ARFF file, found {error.strerror}") from error
    cached = cache_folder() / f"arff-{hashlib.sha256(content).hexdigest()[:32]}-{LAYOUT}.npz"
    table = _load_cache(cached)
    if table is None:
        table = parse(content, path)
        _save_cache(table, cached)
    return table


def parse(content: bytes, path: Path) -> Table:
    """Parse the content of a file. `path` is used in error messages only."""
    from scipy.io import arff  # imported here: a machine with a filled cache does not need SciPy

    try:
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        rows, meta = arff.loadarff(io.StringIO(text.decode("utf-8")))
        return _table(rows, meta)
    except Exception as error:  # the parser raises many kinds of errors on broken files
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(f"{path}: expected a complete ARFF table, found {reason}") from error


def _table(rows: Any, meta: Any) -> Table:
    names = tuple(meta.names())
    categories = tuple(tuple(meta[name][1] or ()) for name in names)
    columns = [_codes(rows[n], c) if c else rows[n].astype(np.float64) for n, c in zip(names, categories, strict=True)]
    return Table(np.stack(columns, 1) if len(rows) else np.empty((0, len(names))), names, categories)


def _codes(cells: NDArray[np.bytes_], categories: tuple[str, ...]) -> Matrix:
    indices = {category: float(i) for i, category in enumerate(categories)}
    return np.array([indices.get(cell.decode(), np.nan) for cell in cells], dtype=np.float64)


def _save_cache(table: Table, path: Path) -> None:
    """Write a cache file. Failures are ignored, because the cache only saves time."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, values=table.values, names=np.array(table.names), categories=np.array(json.dumps(table.categories))
    )
    try:
        write_atomic(path, buffer.getvalue(), durable=False)
    except OSError:
        return


def _load_cache(path: Path) -> Table | None:
    try:
        with np.load(path, allow_pickle=False) as saved:
            categories = tuple(tuple(c) for c in json.loads(str(saved["categories"])))
            return Table(saved["values"], tuple(map(str, saved["names"])), categories)
    except Exception:  # missing or damaged: zipfile, zlib and numpy raise different errors
        return None
