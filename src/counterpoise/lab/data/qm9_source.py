"""Read the csv files of the package qm9pack (https://pypi.org/project/qm9pack).

The package is not imported: its reader needs pkg_resources, which setuptools no longer contains.
"""

import csv
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

FILES = ("qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv")
NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
PROPERTIES = {
    "Dipole_debye": 4,
    "Polarizability_bohr3": 2,
    "HOMO_au": 4,
    "LUMO_au": 4,
    "R2_bohr2": 4,
    "ZPVE_au": 6,
    "InternalEnergy_0K_au": 6,
    "InternalEnergy_298K_au": 6,
    "Enthalphy_298K_au": 6,
    "GibbsFreeEnergy_298K_au": 6,
    "Heatcapacity_Cv_cal_mol_K": 3,
}
"""Columns of the eleven targets, and the number of decimals that the files give."""

_COLUMNS = ("Index", "SMILES", "Elements", "XYZ_Ang", *PROPERTIES)
_PUNCTUATION = str.maketrans("", "", "[]' ")


@dataclass(frozen=True, slots=True)
class Record:
    """A molecule of the csv files.

    Args:
        index: Number of the molecule in QM9, from 1 to 133,885.
        smiles: Its SMILES.
        numbers: Atomic numbers (A,), uint8.
        positions: Coordinates (A, 3) in Å, float64.
        properties: The columns `PROPERTIES` in units of their last decimal.
    """

    index: int
    smiles: str
    numbers: NDArray[np.uint8]
    positions: NDArray[np.float64]
    properties: tuple[int, ...]


def csv_folder(given: Path | None = None) -> Path:
    """Return the folder of the csv files: the given one, or else that of the installed package.

    Raises:
        DataError: If there is no such folder, or a file is missing.
    """
    if given is None:
        package = importlib.util.find_spec("qm9pack")
        if package is None or not package.submodule_search_locations:
            raise DataError(
                "qm9pack is not installed: run pip install 'counterpoise[qm9]', or give the folder of its csv files "
                "with --from"
            )
        given = Path(package.submodule_search_locations[0]) / "data"
    missing = [name for name in FILES if not (given / name).is_file()]
    if missing:
        raise DataError(f"{given}: expected {', '.join(FILES)}, found no {' and no '.join(missing)}")
    return given


def read_records(folder: Path) -> Iterator[Record]:
    """Read all molecules.

    Raises:
        DataError: If a file cannot be read or parsed. The message names the file and the line.
    """
    for name in FILES:
        path = folder / name
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            try:
                header = next(rows, [])
                missing = [column for column in _COLUMNS if column not in header]
                if missing:
                    raise ValueError(f"no column {missing[0]}")
                places = [header.index(column) for column in _COLUMNS]
                for row in rows:
                    yield _parse([row[place] for place in places])
            except (ValueError, KeyError, IndexError, csv.Error) as error:
                raise DataError(
                    f"{path}: expected a table of qm9pack, found {error!r} in line {rows.line_num}"
                ) from error


def _parse(cells: list[str]) -> Record:
    index, smiles, elements, coordinates, *properties = cells
    numbers = np.array([NUMBERS[symbol] for symbol in elements.translate(_PUNCTUATION).split(",")], np.uint8)
    positions = np.array([float(cell) for cell in coordinates.translate(_PUNCTUATION).split(",")]).reshape(-1, 3)
    if len(positions) != len(numbers):
        raise ValueError(f"{len(positions)} positions of {len(numbers)} atoms")
    decimals = PROPERTIES.values()
    scaled = tuple(_scaled(float(cell), places) for cell, places in zip(properties, decimals, strict=True))
    return Record(int(index), smiles, numbers, positions, scaled)


def _scaled(value: float, decimals: int) -> int:
    scaled = value * float(10**decimals)
    result = round(scaled)
    if abs(scaled - result) > 1e-3:
        raise ValueError(f"{value} has more than {decimals} decimals")
    return result
