"""Convert the molecules of qm9pack to the compact file: find their bonds, and check them molecule by molecule."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError
from .qm9_file import PUBLISHED, RESOLUTION, Packed, digest, write_packed
from .qm9_graph import Graph, MatchError, molecular_graph
from .qm9_source import Record, csv_folder, read_records

MOLECULES = 130_831
DIGEST = "b61395c4eb9362bc79433c9c862e9778"  # of the published numbers of all molecules


CORRECTED = {133857: "CC1C2C3C4=CCC12C43", 133859: "CN1C2C3C4=CCC21C43"}
"""SMILES of the two geometries that have other bonds than their published SMILES."""


@dataclass(frozen=True)
class PackReport:
    """How the bonds of the molecules were found.

    Args:
        molecules: Number of molecules.
        reordered: Molecules whose heavy atoms are not in the order of the SMILES.
        corrected: Molecules whose SMILES is replaced by that of the geometry.
    """

    molecules: int
    reordered: tuple[int, ...]
    corrected: tuple[int, ...]


def pack_records(records: Iterable[Record], graph: Callable[..., Graph] = molecular_graph) -> tuple[Packed, PackReport]:
    """Find the bonds of molecules, and concatenate the molecules.

    Args:
        records: The molecules.
        graph: Returns the graph of a molecule, or raises MatchError. Default: `molecular_graph`.

    Raises:
        DataError: If the SMILES of a molecule does not fit its geometry.
    """
    kept: list[Record] = []
    graphs: list[Graph] = []
    unmatched: dict[int, MatchError] = {}
    for record in records:
        try:
            graphs.append(graph(CORRECTED.get(record.index, record.smiles), record.numbers, record.positions))
            kept.append(record)
        except MatchError as error:
            unmatched[record.index] = error
    if unmatched or not kept:
        listed = "; ".join(f"{index}: {error}" for index, error in list(unmatched.items())[:5])
        raise DataError(f"expected SMILES that fit the geometries, found {len(unmatched)} others ({listed})")
    packed = Packed(
        np.array([record.index for record in kept], np.int32),
        np.array([len(record.numbers) for record in kept], np.uint8),
        np.concatenate([record.numbers for record in kept]),
        np.concatenate([each.attributes for each in graphs]),
        np.concatenate([np.rint((r.positions - r.positions.min(0)) / RESOLUTION) for r in kept]).astype(np.int32),
        np.array([len(each.types) for each in graphs], np.uint8),
        np.concatenate([each.ends for each in graphs]),
        np.concatenate([each.types for each in graphs]),
        np.array([record.properties for record in kept], np.int32),
    )
    reordered = tuple(record.index for record, each in zip(kept, graphs, strict=True) if each.reordered)
    corrected = tuple(record.index for record in kept if record.index in CORRECTED)
    return packed, PackReport(len(kept), reordered, corrected)


def write_qm9(source: Path | None, to: Path) -> PackReport:
    """Write the compact file of all molecules.

    Args:
        source: The folder of the csv files. Default: that of the installed package qm9pack.
        to: The file.

    Raises:
        DataError: If qm9pack or RDKit is missing, a file cannot be read, or the molecules are not the published ones.
    """
    folder = csv_folder(source)
    try:
        import rdkit  # noqa: F401
    except ModuleNotFoundError as missing:
        raise DataError("finding the bonds of QM9 needs RDKit: pip install 'counterpoise[qm9]'") from missing
    packed, report = pack_records(read_records(folder))
    found = digest(packed, PUBLISHED)
    if (report.molecules, found) != (MOLECULES, DIGEST):
        raise DataError(
            f"{folder}: expected the {MOLECULES} molecules of QM9 (digest {DIGEST[:16]}…), found {report.molecules} "
            f"(digest {found[:16]}…): nothing was written"
        )
    write_packed(packed, to)
    return report
