"""Bonds and properties of atoms from a SMILES with RDKit, matched with the atoms of a geometry.

QM9 lists the heavy atoms in the order of the SMILES, with five exceptions. Most hydrogens follow in an arbitrary order.
A hydrogen is bonded to the heavy atom that is closest to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .qm9 import AROMATIC, HYDROGENS, SP, SP2, SP3

RADII = {1: 0.31, 6: 0.76, 7: 0.71, 8: 0.66, 9: 0.57}
"""Covalent radii in Å (Cordero et al., 2008, https://doi.org/10.1039/b801115j)."""

SHORTEST, LONGEST, APART = 0.75, 1.3, 1.12
"""Bounds on the lengths of bonds, and on the distances of other atoms, relative to the sum of the radii.

The bonds of QM9 are 0.78 to 1.29 long, and other atoms are at least 1.147 apart.
"""

Array = NDArray[Any]


class MatchError(ValueError):
    """Raised when the graph of a SMILES does not fit the geometry."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The graph of a molecule with A atoms and B bonds.

    Args:
        attributes: Properties of the atoms (A,), uint8, as in `Molecules`.
        ends: Positions of the two atoms of each bond (B, 2), uint8.
        types: Types of the bonds (B,), uint8, as in `Packed`.
        reordered: Whether the heavy atoms of the geometry have another order than those of the SMILES.
    """

    attributes: Array
    ends: Array
    types: Array
    reordered: bool = False


@dataclass(frozen=True, slots=True)
class _Skeleton:
    """The heavy atoms of a SMILES."""

    numbers: Array
    attributes: Array
    hydrogens: Array
    ends: Array
    types: Array


def molecular_graph(smiles: str, numbers: Array, positions: Array) -> Graph:
    """Return the graph of a molecule in the order of its geometry.

    Args:
        smiles: The SMILES.
        numbers: Atomic numbers (A,).
        positions: Coordinates (A, 3) in Å.

    Raises:
        MatchError: If the elements, the numbers of hydrogens or the distances do not fit the geometry.
    """
    skeleton = _parse(smiles)
    expected = sorted([*skeleton.numbers.tolist(), *[1] * int(skeleton.hydrogens.sum())])
    if expected != sorted(numbers.tolist()):
        raise MatchError(f"{smiles} has the elements {expected}, the geometry {sorted(numbers.tolist())}")
    relative = relative_distances(numbers, positions)
    heavy = np.flatnonzero(numbers > 1)
    error = None
    for reordered, orders in ((False, iter([heavy])), (True, _orders(skeleton, numbers, relative))):
        for order in orders:
            try:
                return _place(skeleton, order, numbers, relative, reordered=reordered)
            except MatchError as first:
                error = error or first
    raise MatchError(f"{smiles}: {error}")


def _parse(smiles: str) -> _Skeleton:
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise MatchError(f"RDKit cannot parse {smiles}")
    atoms = list(molecule.GetAtoms())
    kinds = Chem.HybridizationType
    bits = {kinds.SP: SP, kinds.SP2: SP2, kinds.SP3: SP3}
    hydrogens = [atom.GetTotalNumHs() for atom in atoms]
    attributes = [
        bits.get(atom.GetHybridization(), 0) | AROMATIC * atom.GetIsAromatic() | count << HYDROGENS
        for atom, count in zip(atoms, hydrogens, strict=True)
    ]
    Chem.Kekulize(molecule)  # keeps the aromatic flags
    orders = {Chem.BondType.SINGLE: 1, Chem.BondType.DOUBLE: 2, Chem.BondType.TRIPLE: 3}
    bonds = list(molecule.GetBonds())
    return _Skeleton(
        np.array([atom.GetAtomicNum() for atom in atoms]),
        np.array(attributes, np.uint8),
        np.array(hydrogens),
        np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], np.int64).reshape(-1, 2),
        np.array([orders[bond.GetBondType()] | 4 * bond.GetIsAromatic() for bond in bonds], np.uint8),
    )


def relative_distances(numbers: Array, positions: Array) -> Array:
    """Return the distances of atoms (A, A), divided by the sums of their covalent radii."""
    radii = np.array([RADII[number] for number in numbers.tolist()])
    distances = np.sqrt(np.square(positions[:, None] - positions[None]).sum(-1))
    relative: Array = distances / (radii[:, None] + radii[None])
    return relative


def _place(skeleton: _Skeleton, order: Array, numbers: Array, relative: Array, *, reordered: bool) -> Graph:
    """Return the graph if atom i of the SMILES is atom `order[i]` of the geometry."""
    if (numbers[order] != skeleton.numbers).any():
        raise MatchError("the heavy atoms are in another order")
    light = np.flatnonzero(numbers == 1)
    closest = relative[np.ix_(light, order)].argmin(1) if len(light) else light
    if (np.bincount(closest, minlength=len(order)) != skeleton.hydrogens).any():
        raise MatchError("the closest heavy atoms of the hydrogens are not those of the SMILES")
    ends = np.concatenate([order[skeleton.ends], np.stack([order[closest], light], 1)])
    types = np.concatenate([skeleton.types, np.ones(len(light), np.uint8)])
    bonded = np.eye(len(numbers), dtype=bool)
    bonded[ends[:, 0], ends[:, 1]] = bonded[ends[:, 1], ends[:, 0]] = True
    lengths, others = relative[ends[:, 0], ends[:, 1]], relative[~bonded]
    if lengths.min() < SHORTEST or lengths.max() > LONGEST:
        raise MatchError(f"the bonds are {lengths.min():.2f} to {lengths.max():.2f} times the sum of the radii long")
    if others.size and others.min() < APART:
        raise MatchError(f"atoms that are not bonded are {others.min():.2f} times the sum of their radii apart")
    attributes = np.zeros(len(numbers), np.uint8)
    attributes[order] = skeleton.attributes
    return Graph(attributes, ends.astype(np.uint8), types, reordered)


def _orders(skeleton: _Skeleton, numbers: Array, relative: Array, start: tuple[int, ...] = ()) -> Iterator[Array]:
    """Yield the orders of heavy atoms that agree with the elements and the bonds of the SMILES."""
    if len(start) == len(skeleton.numbers):
        yield np.array(start)
        return
    earlier = [int(a) if b == len(start) else int(b) for a, b in skeleton.ends.tolist() if max(a, b) == len(start)]
    for atom in np.flatnonzero(numbers == skeleton.numbers[len(start)]).tolist():
        if atom not in start and all(relative[atom, start[other]] < LONGEST for other in earlier):
            yield from _orders(skeleton, numbers, relative, (*start, atom))
