"""The workload of the study of QM9: R networks, each with its own split of the molecules and its own batches."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.augment import mix_seed
from ..data.locations import data_folder
from ..data.qm9 import SINGLE_TASK_MAE, TARGETS, UNITS, Molecules, load_qm9, split
from ..data.qm9_synthetic import synthetic_molecules
from ..models.qm9 import MoleculeBatch, StackedMPNN, edge_inputs
from .config import Run

SYNTHETIC = "synthetic-molecules"
MOLECULES = ("qm9", SYNTHETIC)
"""Names of the data."""

EVALUATED = 256  # molecules of each run per forward pass in evaluation
PREPARED = 8192  # molecules whose inputs are computed at once before the training on CUDA
ORDER = 3  # purpose of the random stream of the batches
MAX_CPU_RUNS = 2


class TrainingBatch(NamedTuple):
    """Molecules, their targets (R, B, T), and their weights in the loss (R, B, 1), which sum to 1."""

    parts: list[MoleculeBatch]
    targets: Tensor
    weight: Tensor

    def select(self, rows: slice) -> "TrainingBatch":
        """Return the molecules of some of the networks."""
        parts = [MoleculeBatch(*(tensor[rows] for tensor in part)) for part in self.parts]
        return TrainingBatch(parts, self.targets[rows], self.weight[rows])


class QM9Workload:
    """R networks that predict eleven properties of molecules.

    The seed of a run determines its split, its network and its batches. Options of the data (`Run.data`):

    molecules: the number of molecules; all by default.
    sanitised: whether aromaticity and hybridisation are known; True by default.
    targets: "standardised" by the mean and deviation of the training molecules (default), or "raw", with energies in
        eV.
    compared: where methods compare task gradients: "features" (default), the representation that the heads take as
        input, or "parameters", all shared parameters, which takes one backward pass per task.
    """

    tasks = TARGETS

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        options = first.data.kwargs
        molecules = load_molecules(first.data.name, options.get("molecules"), bool(options.get("sanitised", True)))
        self.replicas, self.batch_size = len(runs), first.schedule.batch_size
        self.seeds = [run.seed for run in runs]
        self.compared = str(options.get("compared", "features"))
        self.atoms = int(molecules.present().sum(1).max())
        parts = [split(len(molecules), seed) for seed in self.seeds]
        self.train, self.validation, self.test = (torch.stack(part).to(device) for part in zip(*parts, strict=True))
        self.centre, self.spread = (values.to(device) for values in self._scales(molecules, options.get("targets")))
        self.features = molecules.features(torch.uint8).to(device)
        self.molecules = molecules.to(device)
        kwargs: dict[str, Any] = first.model.kwargs
        precision = first.schedule.precision
        self.network = StackedMPNN(self.seeds, len(TARGETS), precision=precision, **kwargs).to(device)
        self.inputs: MoleculeBatch | None = None
        if torch.device(device).type == "cuda":  # 2 GB in half precision; a batch is then gathered by few kernels
            every = torch.arange(len(molecules), device=device).split(PREPARED)
            parts = [self._molecules(rows, self.atoms) for rows in every]
            self.inputs = MoleculeBatch(*(torch.cat(part) for part in zip(*parts, strict=True)))
        # The step reads and writes these tensors in place, so that a CUDA graph can replay it.
        self.order = torch.zeros(self.replicas, self.steps * self.batch_size, dtype=torch.long, device=device)
        self.batch_index = torch.zeros((), dtype=torch.long, device=device)
        self.held_out = torch.zeros_like(self.validation)

    @classmethod
    def shape_key(cls, run: Run) -> tuple[object, ...]:
        """Return what two runs must share to be trained together."""
        return (run.data,)

    @classmethod
    def max_replicas(cls, run: Run) -> int | None:
        """Return how many runs are worth training together on a CPU."""
        return MAX_CPU_RUNS

    @classmethod
    def relative_cost(cls, run: Run) -> int:
        """Return the duration of an epoch relative to other runs."""
        return 1

    @property
    def steps(self) -> int:
        """The number of batches in an epoch. The last one may be smaller."""
        return -(-self.train.shape[1] // self.batch_size)

    def _scales(self, molecules: Molecules, targets: str | None) -> tuple[Tensor, Tensor]:
        """Return what is subtracted from the targets, and by what they are then divided, (R, 1, T) each."""
        if targets == "raw":
            units = torch.tensor([1000.0 if unit == "meV" else 1.0 for unit in UNITS], dtype=torch.float64)
            return torch.zeros(1, 1, len(units), dtype=torch.float64), units.expand(self.replicas, 1, -1)
        known = [molecules.targets[rows] for rows in self.train.cpu()]
        centre, spread = (torch.stack([found(y) for y in known]).unsqueeze(1) for found in (_mean, _deviation))
        return centre, spread

    def start_epoch(self, epoch: int) -> None:
        """Draw the order of the molecules, which depends on the seed of the run and the epoch alone."""
        count = self.train.shape[1]
        orders = []
        for seed in self.seeds:
            stream = torch.Generator().manual_seed(mix_seed(seed, epoch, ORDER))
            orders.append(torch.randperm(count, generator=stream))
        order = torch.stack(orders).to(self.order.device)
        self.order[:, :count].copy_(self.train.gather(1, order))
        self.batch_index.zero_()

    def next_batch(self) -> TrainingBatch:
        """Return the next batch; after the last one, the first again. Places beyond the end get weight 0."""
        places = self.batch_index * self.batch_size + torch.arange(self.batch_size, device=self.order.device)
        self.batch_index.add_(1).remainder_(self.steps)
        return self._batch(self.order, places, self.train.shape[1])

    def _batch(self, order: Tensor, places: Tensor, count: int) -> TrainingBatch:
        """Return the molecules at some places of an order (R, n), of which the first `count` are counted."""
        rows = order.index_select(1, places % order.shape[1])
        counted = (places < count).to(torch.float32)
        weight = (counted / counted.sum()).expand(self.replicas, -1).unsqueeze(-1)
        targets = (self.molecules.targets[rows] - self.centre) / self.spread
        return TrainingBatch([self._molecules(rows, self.atoms)], targets.float(), weight)

    def _molecules(self, rows: Tensor, atoms: int) -> MoleculeBatch:
        """Return molecules (R, B) padded to a number of atoms."""
        flat = rows.flatten()
        if self.inputs is not None:
            return MoleculeBatch(*(part[flat].unflatten(0, rows.shape) for part in self.inputs))
        numbers, bonds = self.molecules.numbers[flat, :atoms], self.molecules.bonds[flat, :atoms, :atoms]
        positions = self.molecules.positions[flat, :atoms]
        distances = (positions.unsqueeze(2) - positions.unsqueeze(1)).norm(dim=-1)
        present = numbers != 0
        parts = self.features[flat, :atoms].float(), edge_inputs(bonds, distances, present, self.network.dtype), present
        return MoleculeBatch(*(part.unflatten(0, rows.shape) for part in parts))

    def losses(self, batch: TrainingBatch, rows: slice = slice(None)) -> Tensor:
        """Return the mean squared errors (R, T) of some of the networks."""
        part = batch.select(rows)
        out = self.network.heads(self.network.features(part.parts, rows), rows)
        return _squared_errors(out, part)

    def task_gradients(self, features: Tensor, batch: TrainingBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses (R, T) and their gradients, at the features (R, T, B·width) and of the heads (R, T, Q)."""
        features = features.detach()
        weight = self.network.head_weight.detach()  # (R, width, T)
        out = self.network.heads(features).detach()
        slope = 2 * batch.weight * (out - batch.targets)
        at_features = slope.mT.unsqueeze(-1) * weight.mT.unsqueeze(2)
        own = torch.cat([torch.bmm(features.mT, slope), slope.sum(1, keepdim=True)], 1)
        # Entry t of the last dimension belongs to head t alone.
        of_heads = torch.diag_embed(own, dim1=1, dim2=3)
        weights, biases = of_heads[:, :, :-1].flatten(2), of_heads[:, :, -1]
        return _squared_errors(out, batch), at_features.flatten(2), torch.cat([weights, biases], 2)

    @torch.no_grad()
    def errors(self, index: Tensor) -> Tensor:
        """Return the sums (R, T) of the absolute errors of a batch of held-out molecules, in the units of the targets.

        Args:
            index: the number of the batch, a tensor on the device.
        """
        places = index * EVALUATED + torch.arange(EVALUATED, device=index.device)
        count = self.held_out.shape[1]
        batch = self._batch(self.held_out, places, count)
        difference = (self.network(*batch.parts) - batch.targets).abs() * (batch.weight > 0)
        return difference.double().sum(1) * self.spread.squeeze(1)

    @property
    def evaluation_batches(self) -> int:
        return -(-self.held_out.shape[1] // EVALUATED)


def relative_change(errors: Tensor) -> Tensor:
    """Return Δm in % of mean absolute errors (…, T): their mean change relative to single-task models."""
    single = torch.tensor(SINGLE_TASK_MAE, dtype=errors.dtype)
    return 100 * (errors / single - 1).mean(-1)


def _squared_errors(out: Tensor, batch: TrainingBatch) -> Tensor:
    errors: Tensor = (batch.weight * (out - batch.targets).square()).sum(1)
    return errors


def _mean(values: Tensor) -> Tensor:
    return values.mean(0)


def _deviation(values: Tensor) -> Tensor:
    return values.std(0)


@lru_cache(maxsize=2)
def load_molecules(name: str, molecules: int | None, sanitised: bool = True) -> Molecules:
    """Load molecules of QM9, or draw synthetic ones."""
    if name == SYNTHETIC:
        return synthetic_molecules(molecules or 1000)
    return load_qm9(data_folder(), molecules, sanitised=sanitised)
