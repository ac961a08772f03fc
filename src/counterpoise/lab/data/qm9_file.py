"""The compact file of QM9, which needs neither qm9pack nor RDKit: all molecules one after another in an .npz file.

Positions are integers in units of 1e-4 Å, as precise as the files of other QM9 loaders. Each molecule is translated so
that its smallest coordinates are 0. Properties are the published decimals. Integers are stored as four planes of
bytes, because the planes of the high bytes compress well. A digest of the arrays detects damage.
"""

import hashlib
import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import read_regular, write_atomic

LAYOUT = 1  # version of the file; increase it when its layout changes
RESOLUTION = 1e-4  # Å

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Packed:
    """M molecules with A atoms and B bonds in total.

    Args:
        index: Numbers of the molecules in QM9 (M,), int32.
        sizes: Numbers of atoms of the molecules (M,), uint8.
        numbers: Atomic numbers (A,), uint8.
        attributes: Properties of the atoms (A,), uint8, as in `Molecules`.
        positions: Coordinates (A, 3) in units of `RESOLUTION`, int32.
        bond_counts: Numbers of bonds of the molecules (M,), uint8.
        bond_ends: Positions of the two atoms of each bond in their molecule (B, 2), uint8.
        bond_types: Types of the bonds (B,), uint8: 1 to 3 for single, double and triple bonds of a Kekulé structure,
            plus 4 for aromatic bonds.
        properties: The properties (M, 11) in units of their last decimal, int32.
    """

    index: Integers
    sizes: Bytes
    numbers: Bytes
    attributes: Bytes
    positions: Integers
    bond_counts: Bytes
    bond_ends: Bytes
    bond_types: Bytes
    properties: Integers

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


PUBLISHED = ("index", "sizes", "numbers", "positions", "properties")
"""The arrays that are published numbers. The others are derived by RDKit, whose versions may differ."""


def digest(packed: Packed, names: tuple[str, ...] | None = None) -> str:
    """Return a digest of some arrays. Default: all."""
    result = hashlib.sha256()
    for name, array in packed.arrays().items():
        if names is None or name in names:
            result.update(f"{name} {array.shape}".encode())
            result.update(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes())
    return result.hexdigest()[:32]


def select(packed: Packed, rows: NDArray[np.int64]) -> Packed:
    """Return some of the molecules, in their present order."""
    kept = np.zeros(len(packed.sizes), bool)
    kept[rows] = True
    atoms, bonds = np.repeat(kept, packed.sizes), np.repeat(kept, packed.bond_counts)
    return Packed(
        packed.index[kept],
        packed.sizes[kept],
        packed.numbers[atoms],
        packed.attributes[atoms],
        packed.positions[atoms],
        packed.bond_counts[kept],
        packed.bond_ends[bonds],
        packed.bond_types[bonds],
        packed.properties[kept],
    )


def write_packed(packed: Packed, path: Path) -> None:
    """Write the file in one step."""
    buffer = io.BytesIO()
    stored = {name: _planes(array) if array.dtype == np.int32 else array for name, array in packed.arrays().items()}
    stored |= {"layout": np.array(LAYOUT), "digest": np.array(digest(packed))}
    np.savez_compressed(buffer, allow_pickle=False, **stored)
    write_atomic(path, buffer.getvalue())


def read_packed(path: Path) -> Packed:
    """Read the file.

    Raises:
        DataError: If the file is missing or damaged.
    """
    try:
        with np.load(io.BytesIO(read_regular(path))) as file:
            stored = {name: file[name] for name in file.files}
        if int(stored["layout"]) != LAYOUT:
            raise DataError(
                f"{path}: expected layout {LAYOUT}, found {stored['layout']}: write it again with counterpoise data "
                "pack qm9"
            )
        packed = Packed(**{field.name: _array(field.name, stored[field.name]) for field in fields(Packed)})
        found, expected = digest(packed), str(stored["digest"])
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: expected the file of QM9, found {error.strerror or error}") from error
    except Exception as error:  # zipfile, zlib and numpy raise different errors
        raise DataError(f"{path}: expected the file of QM9, found {type(error).__name__} ({error})") from error
    if found != expected:
        raise DataError(f"{path}: expected digest {expected[:16]}…, found {found[:16]}…: the file is damaged")
    return packed


def _planes(array: Integers) -> Bytes:
    """Return the bytes of integers, (4, …, rows): first all lowest bytes, column by column."""
    flat = np.ascontiguousarray(array.T.astype("<i4"))
    return np.ascontiguousarray(np.moveaxis(flat.view(np.uint8).reshape(*flat.shape, 4), -1, 0))


def _integers(planes: Bytes) -> Integers:
    joined = np.ascontiguousarray(np.moveaxis(planes, 0, -1)).view("<i4")[..., 0]
    return np.ascontiguousarray(joined.T.astype(np.int32))


def _array(name: str, stored: NDArray[Any]) -> NDArray[Any]:
    return _integers(stored) if name in ("index", "positions", "properties") else stored
