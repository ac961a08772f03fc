"""Tables in ARFF files, gzipped or plain, read by SciPy's parser and kept as one .npz for the next time."""

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

from ..files import write_atomic

CACHE_VARIABLE = "COUNTERPOISE_CACHE"
LAYOUT = 1  # of a cached table; raise it when that changes

Matrix = NDArray[np.float64]


class DataError(ValueError):
    """A data file that is not what it should be: the message names it, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of a file as numbers: NaN where one is missing, the place of its category where it is nominal."""

    values: Matrix  # (rows, attributes)
    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]  # of each attribute; none: it is numeric


def cache_folder() -> Path:
    """Where parsed tables are kept: $COUNTERPOISE_CACHE, or the user's cache folder."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "counterpoise"


def read(path: Path) -> Table:
    """A table, from the cache if this very file was parsed before."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected an ARFF file, found none that can be read ({error.strerror})") from error
    cached = cache_folder() / f"arff-{hashlib.sha256(content).hexdigest()[:32]}-{LAYOUT}.npz"
    table = _load(cached)
    if table is None:
        table = parse(content, path)
        _keep(table, cached)
    return table


def parse(content: bytes, path: Path) -> Table:
    """What a file with this content holds; `path` is only named in errors."""
    from scipy.io import arff  # needed once for each file: a machine that was given the cache does without

    try:
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        rows, meta = arff.loadarff(io.StringIO(text.decode("utf-8")))
        return _table(rows, meta)
    except Exception as error:  # a broken file makes the parser raise nearly anything
        found = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(f"{path}: expected a whole ARFF table, found one that cannot be parsed ({found})") from error


def _table(rows: Any, meta: Any) -> Table:
    names = tuple(meta.names())
    categories = tuple(tuple(meta[name][1] or ()) for name in names)
    columns = [_codes(rows[n], c) if c else rows[n].astype(np.float64) for n, c in zip(names, categories, strict=True)]
    return Table(np.stack(columns, 1) if len(rows) else np.empty((0, len(names))), names, categories)


def _codes(cells: NDArray[np.bytes_], categories: tuple[str, ...]) -> Matrix:
    places = {category: float(i) for i, category in enumerate(categories)}
    return np.array([places.get(cell.decode(), np.nan) for cell in cells], dtype=np.float64)


def _keep(table: Table, path: Path) -> None:
    """Best effort: a cache folder that cannot be written costs time, not results."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, values=table.values, names=np.array(table.names), categories=np.array(json.dumps(table.categories))
    )
    try:
        write_atomic(path, buffer.getvalue(), durable=False)
    except OSError:
        return


def _load(path: Path) -> Table | None:
    try:
        with np.load(path, allow_pickle=False) as kept:
            categories = tuple(tuple(c) for c in json.loads(str(kept["categories"])))
            return Table(kept["values"], tuple(map(str, kept["names"])), categories)
    except Exception:  # not there, or damaged: zipfile, zlib and numpy each have errors of their own
        return None
