"""QM9: eleven properties of 130,831 molecules of up to nine heavy atoms, padded to 29 atoms.

Ramakrishnan et al. (2014, https://doi.org/10.1038/sdata.2014.22) computed the properties. The targets, their units and
the features follow the multi-task benchmark of Navon et al. (2022, https://arxiv.org/abs/2202.01017).
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError
from .qm9_file import RESOLUTION, Packed, read_packed, select
from .qm9_source import PROPERTIES

ATOMS = 29  # atoms of the largest molecule; smaller ones are padded
ELEMENTS = (1, 6, 7, 8, 9)  # atomic numbers of H, C, N, O, F
HELD_OUT = 10_000  # test molecules, and as many validation molecules
FILE = Path("qm9", "qm9.npz")  # in the data folder

TARGETS = ("mu", "alpha", "homo", "lumo", "R2", "ZPVE", "U0", "U", "H", "G", "cv")
"""Dipole moment, polarisability, orbital energies, spatial extent, zero-point energy, the atomisation forms of the
internal energy at 0 K and at 298 K, of the enthalpy and of the free energy, and the heat capacity."""

UNITS = ("D", "a0^3", "meV", "meV", "a0^2", "meV", "meV", "meV", "meV", "meV", "cal/(mol K)")
"""Unit of each target."""

SINGLE_TASK_MAE = (0.0671, 0.1814, 60.576, 53.915, 0.5027, 4.539, 58.838, 64.244, 63.852, 66.223, 0.07212)
"""Mean absolute errors of single-task models, from which Navon et al. compute Δm."""

MEV = 27_211.386246
"""1 hartree in meV."""

REFERENCES = {
    1: (-0.500273, -0.498857, -0.497912, -0.510927),
    6: (-37.846772, -37.845355, -37.844411, -37.861317),
    7: (-54.583861, -54.582445, -54.581501, -54.598897),
    8: (-75.064579, -75.063163, -75.062219, -75.079532),
    9: (-99.718730, -99.717314, -99.716370, -99.733544),
}
"""U0, U, H and G of single atoms in hartree, published with QM9."""

AROMATIC, SP, SP2, SP3 = 1, 2, 4, 8
HYDROGENS = 4  # position of the number of hydrogens in `Molecules.attributes`


@dataclass(frozen=True)
class Molecules:
    """M molecules in compact types. Atoms beyond the size of a molecule are padding, whose entries are all 0.

    Args:
        numbers: Atomic numbers (M, 29), uint8.
        attributes: Properties of the atoms (M, 29), uint8: bit 0 is set for aromatic atoms, bits 1 to 3 for the
            hybridisations sp, sp2 and sp3, and the higher bits are the number of hydrogens bonded to the atom.
        bonds: Types of the bonds (M, 29, 29), uint8, symmetric: 0 for none, 1 to 4 for single, double, triple and
            aromatic bonds.
        positions: Coordinates (M, 29, 3) in Å, float32.
        targets: The properties `TARGETS` in the units `UNITS`, (M, 11), float64.

    Example:
        >>> from counterpoise.lab.data.qm9_synthetic import synthetic_molecules
        >>> batch = synthetic_molecules(100)[torch.tensor([3, 14, 15])]
        >>> batch.features().shape, batch.edges().shape, batch.targets.shape
        (torch.Size([3, 29, 11]), torch.Size([3, 29, 29, 5]), torch.Size([3, 11]))
    """

    numbers: Tensor
    attributes: Tensor
    bonds: Tensor
    positions: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Tensor | slice) -> "Molecules":
        """Return some of the molecules."""
        return Molecules(*(getattr(self, field.name)[rows] for field in fields(self)))

    def to(self, device: str | torch.device) -> "Molecules":
        """Return a copy on another device."""
        return Molecules(*(getattr(self, field.name).to(device) for field in fields(self)))

    def present(self) -> Tensor:
        """Return which atoms are not padding, (M, 29), bool."""
        return self.numbers != 0

    def features(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the features of the atoms, (M, 29, 11).

        They are indicators of H, C, N, O and F, the atomic number, indicators of aromatic, sp, sp2 and sp3 atoms, and
        the number of hydrogens.
        """
        elements = self.numbers[..., None] == torch.tensor(ELEMENTS, dtype=torch.uint8, device=self.numbers.device)
        bits = [(self.attributes & bit) != 0 for bit in (AROMATIC, SP, SP2, SP3)]
        columns = [self.numbers, *bits, self.attributes >> HYDROGENS]
        return torch.cat([elements.to(dtype), torch.stack([column.to(dtype) for column in columns], -1)], -1)

    def distances(self) -> Tensor:
        """Return the distances between atoms in Å, (M, 29, 29), float32; 0 on the diagonal and for padding."""
        both = self.present()[:, :, None] & self.present()[:, None, :]
        lengths: Tensor = (self.positions[:, :, None] - self.positions[:, None, :]).norm(dim=-1)
        return lengths * both

    def edges(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the features of pairs of atoms, (M, 29, 29, 5): indicators of the four bond types, and the distance.

        Pairs of an atom with itself or with padding are 0. They are not edges of the complete graph.
        """
        types = self.bonds[..., None] == torch.arange(1, 5, dtype=torch.uint8, device=self.bonds.device)
        return torch.cat([types.to(dtype), self.distances()[..., None].to(dtype)], -1)


def load_qm9(data_dir: Path | None, molecules: int | None = None, *, sanitised: bool = True) -> Molecules:
    """Load the molecules from `qm9/qm9.npz` in the data folder, which `counterpoise data pack qm9` writes.

    Args:
        data_dir: The data folder.
        molecules: Number of molecules, which are spread evenly over the data set. Default: all.
        sanitised: Whether aromaticity and hybridisation are known. Otherwise bonds are single, double or triple, and
            the indicators of aromatic, sp, sp2 and sp3 atoms are 0, as in torch_geometric's QM9, which does not
            sanitise the molecules (https://github.com/pyg-team/pytorch_geometric/issues/8370). Default: True.

    Raises:
        DataError: If the file is missing or damaged.
    """
    if data_dir is None or not (data_dir / FILE).exists():
        raise DataError(
            f"qm9 not found: expected {FILE} in the data folder ({data_dir or 'not set'}): run pip install "
            "'counterpoise[qm9]' and counterpoise data pack qm9"
        )
    packed = read_packed(data_dir / FILE)
    if molecules is not None:
        total = len(packed.sizes)
        if not 0 < molecules <= total:
            raise DataError(f"{data_dir / FILE}: expected a number of molecules from 1 to {total}, found {molecules}")
        packed = select(packed, np.arange(molecules) * total // molecules)
    return unpack(packed, sanitised=sanitised)


def unpack(packed: Packed, *, sanitised: bool = True) -> Molecules:
    """Pad the molecules to the same size, and compute the targets."""
    count = len(packed.sizes)
    present = np.arange(ATOMS) < packed.sizes[:, None]
    numbers, attributes = np.zeros((2, count, ATOMS), np.uint8)
    numbers[present], attributes[present] = packed.numbers, packed.attributes
    positions = np.zeros((count, ATOMS, 3), np.float32)
    positions[present] = packed.positions * RESOLUTION
    types = packed.bond_types & 3
    if sanitised:
        types = np.where(packed.bond_types & 4, np.uint8(4), types)
    else:
        attributes >>= HYDROGENS
        attributes <<= HYDROGENS
    bonds = np.zeros((count, ATOMS, ATOMS), np.uint8)
    rows = np.repeat(np.arange(count), packed.bond_counts)
    first, second = packed.bond_ends.T
    bonds[rows, first, second] = bonds[rows, second, first] = types
    arrays = (numbers, attributes, bonds, positions, _targets(packed.properties, numbers))
    return Molecules(*map(torch.from_numpy, arrays))


def _targets(properties: NDArray[np.int32], numbers: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Convert the published decimals to targets: energies relative to those of the atoms, and in meV."""
    values = properties / 10.0 ** np.array(list(PROPERTIES.values()))
    energies = [TARGETS.index(name) for name in ("U0", "U", "H", "G")]
    for number, references in REFERENCES.items():
        values[:, energies] -= (numbers == number).sum(1)[:, None] * np.array(references)
    return np.where(np.array(UNITS) == "meV", values * MEV, values)


def split(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split molecules at random into training, validation and test molecules.

    Of all 130,831 molecules, 10,000 are for validation and 10,000 for testing. Of fewer than 100,000 molecules, it is
    a tenth each.

    Args:
        count: Number of molecules.
        seed: Seed of the permutation.

    Returns:
        The numbers of the training, the validation and the test molecules.
    """
    held_out = min(HELD_OUT, count // 10)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[2 * held_out :], order[held_out : 2 * held_out], order[:held_out]
