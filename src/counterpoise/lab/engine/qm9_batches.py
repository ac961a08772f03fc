"""Batches of molecules: an order for each run, cut into batches whose molecules are paired by size."""

import torch
from torch import Tensor

from ..models.qm9 import MoleculeBatch

SLOT = 40  # atoms of two molecules side by side: QM9 has 18 per molecule on average, and at most 29


class BatchOrder:
    """The order of molecules of each run, in tensors that keep their addresses, so that CUDA graphs can read them.

    In a batch, the smallest molecule is paired with the largest, the second smallest with the second largest, and so
    on. The order within a batch has no effect on the mean of its losses.

    Args:
        runs: the number of runs.
        molecules: the number of molecules of each run.
        batch_size: the number of molecules of each run in a batch. Only even sizes are paired.
        device: the device.
    """

    def __init__(self, runs: int, molecules: int, batch_size: int, device: str) -> None:
        self.molecules, self.batch_size = molecules, batch_size
        self.batches = -(-molecules // batch_size)
        self.rows = torch.zeros(runs, self.batches, batch_size, dtype=torch.long, device=device)
        self.weight = torch.zeros(runs, self.batches, batch_size, device=device)
        self.index = torch.zeros(1, dtype=torch.long, device=device)  # of the next batch
        self.pairs_fit = [False] * self.batches  # for each batch, whether all pairs fit into slots

    def arrange(self, rows: Tensor, sizes: Tensor) -> None:
        """Set the molecules and start with the first batch.

        Args:
            rows: the molecules of each run in the order of the batches, (R, n).
            sizes: the number of atoms of all molecules.
        """
        place = torch.arange(self.batches * self.batch_size, device=rows.device).view(self.batches, self.batch_size)
        filled = rows[:, place % self.molecules]  # fillers of the last batch have weight 0
        counted = place < self.molecules
        weight = (counted / counted.sum(1, keepdim=True)).expand_as(self.weight)
        index = sizes[filled].argsort(dim=-1, stable=True)
        if self.batch_size % 2 == 0:
            half = self.batch_size // 2
            index = torch.stack([index[..., :half], index[..., half:].flip(-1)], -1).flatten(-2)
        self.rows.copy_(filled.gather(-1, index))
        self.weight.copy_(weight.gather(-1, index))
        self.index.zero_()
        if self.batch_size % 2 == 0:
            pairs = sizes[self.rows].unflatten(-1, (-1, 2)).sum(-1)
            self.pairs_fit = (pairs.amax((0, 2)) <= SLOT).tolist()

    def next(self) -> tuple[Tensor, Tensor]:
        """Return the molecules (R, B) of the next batch and their weights (R, B), which sum to 1.

        The batch after the last one is the first.
        """
        rows, weight = (tensor.index_select(1, self.index).squeeze(1) for tensor in (self.rows, self.weight))
        self.index.add_(1).remainder_(self.batches)
        return rows, weight


def separate(inputs: MoleculeBatch, rows: Tensor) -> MoleculeBatch:
    """Return molecules (R, B), each in its own slot.

    Args:
        inputs: the inputs of all molecules, (1, M, N, …).
        rows: the numbers of the molecules.
    """
    atoms, edges, present = (tensor[0][rows] for tensor in inputs)
    return MoleculeBatch(atoms, edges, present)


def paired(inputs: MoleculeBatch, rows: Tensor, sizes: Tensor) -> MoleculeBatch:
    """Return molecules (R, B), each two of which share a slot.

    Args:
        inputs: the inputs of all molecules, (1, M, N, …).
        rows: the numbers of the molecules.
        sizes: the number of atoms of all molecules.
    """
    pairs = rows.unflatten(-1, (-1, 2))
    first, second = sizes[pairs].unsqueeze(-1).unbind(-2)
    place = torch.arange(SLOT, device=rows.device)
    later = place >= first
    owner = later.long() + (place >= first + second)  # 0 and 1 for the molecules, 2 for padding
    atom = (place - later * first).clamp_max(inputs.atoms.shape[2] - 1)
    molecule = torch.where(later, pairs[..., 1:], pairs[..., :1])
    edges = inputs.edges[0][molecule.unsqueeze(-1), atom.unsqueeze(-1), atom.unsqueeze(-2)]
    same = (owner.unsqueeze(-1) == owner.unsqueeze(-2)).unsqueeze(-1)
    present = torch.stack([owner == 0, owner == 1], -2)
    return MoleculeBatch(inputs.atoms[0][molecule, atom], edges * same, present)
