"""QM9: eleven properties of 130,831 molecules of up to nine heavy atoms, padded to 29 atoms.

Ramakrishnan et al. (2014, https://doi.org/10.1038/sdata.2014.22) computed the properties. The targets, their units and
the features follow the multi-task benchmark of Navon et al. (2022, https://arxiv.org/abs/2202.01017).
"""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

ATOMS = 29  # atoms of the largest molecule; smaller ones are padded
ELEMENTS = (1, 6, 7, 8, 9)  # atomic numbers of H, C, N, O, F
HELD_OUT = 10_000  # test molecules, and as many validation molecules

TARGETS = ("mu", "alpha", "homo", "lumo", "R2", "ZPVE", "U0", "U", "H", "G", "cv")
"""Dipole moment, polarisability, orbital energies, spatial extent, zero-point energy, the atomisation forms of the
internal energy at 0 K and at 298 K, of the enthalpy and of the free energy, and the heat capacity."""

UNITS = ("D", "a0^3", "meV", "meV", "a0^2", "meV", "meV", "meV", "meV", "meV", "cal/(mol K)")
"""Unit of each target."""

SINGLE_TASK_MAE = (0.0671, 0.1814, 60.576, 53.915, 0.5027, 4.539, 58.838, 64.244, 63.852, 66.223, 0.07212)
"""Mean absolute errors of single-task models, from which Navon et al. compute Δm."""

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
        return (self.positions[:, :, None] - self.positions[:, None, :]).norm(dim=-1) * both

    def edges(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the features of pairs of atoms, (M, 29, 29, 5): indicators of the four bond types, and the distance.

        Pairs of an atom with itself or with padding are 0. They are not edges of the complete graph.
        """
        types = self.bonds[..., None] == torch.arange(1, 5, dtype=torch.uint8, device=self.bonds.device)
        return torch.cat([types.to(dtype), self.distances()[..., None].to(dtype)], -1)


def load_qm9(data_dir: Path | None, molecules: int | None = None) -> Molecules:
    """Load the molecules from `qm9/qm9.npz` in the data folder, which `counterpoise data pack qm9` writes.

    Args:
        data_dir: The data folder.
        molecules: Number of molecules, which are spread evenly over the data set. Default: all.

    Raises:
        DataError: If the file is missing or damaged.
    """
    raise NotImplementedError


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
