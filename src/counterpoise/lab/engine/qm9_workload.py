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
from .qm9_batches import BatchOrder, paired, separate

SYNTHETIC = "synthetic-molecules"
MOLECULES = ("qm9", SYNTHETIC)
"""Names of the data."""

EVALUATED = 250  # molecules of each run per forward pass in evaluation
PREPARED = 4096  # molecules whose inputs are computed at once
ORDER = 3  # purpose of the random stream of the batches
MAX_CPU_RUNS = 2


class TrainingBatch(NamedTuple):
    """Molecules, their targets (R, B, T), and their weights in the loss (R, B, 1), which sum to 1."""

    molecules: MoleculeBatch
    targets: Tensor
    weight: Tensor

    def select(self, rows: slice) -> "TrainingBatch":
        """Return the molecules of some of the networks."""
        molecules = MoleculeBatch(*(tensor[rows] for tensor in self.molecules))
        return TrainingBatch(molecules, self.targets[rows], self.weight[rows])


class QM9Workload:
    """R networks that predict eleven properties of molecules.

    The seed of a run determines its split, its network and its batches. Options of the data (`Run.data`):

    molecules: the number of molecules; all by default.
    sanitised: whether aromaticity and hybridisation are known; False, as in the published runs, by default.
    targets: "standardised" by the mean and deviation of the training molecules (default), or "raw", with energies in
        eV.
    compared: where methods compare task gradients: "features" (default), the representation that the heads take as
        input, or "parameters", all shared parameters, which takes one backward pass per task.
    """

    tasks = TARGETS

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        options = first.data.kwargs
        molecules = load_molecules(first.data.name, options.get("molecules"), bool(options.get("sanitised", False)))
        self.replicas, self.seeds = len(runs), [run.seed for run in runs]
        self.compared = str(options.get("compared", "features"))
        parts = [split(len(molecules), seed) for seed in self.seeds]
        self.train, self.validation, self.test = (torch.stack(part).to(device) for part in zip(*parts, strict=True))
        self.centre, self.spread = (values.to(device) for values in self._scales(molecules, options.get("targets")))
        self.targets, self.sizes = molecules.targets.to(device), molecules.present().sum(1).to(device)
        kwargs: dict[str, Any] = first.model.kwargs
        precision = first.schedule.precision
        self.network = StackedMPNN(self.seeds, len(TARGETS), precision=precision, **kwargs).to(device)
        self.inputs = molecule_inputs(molecules, device, self.network.dtype)
        self.order = BatchOrder(self.replicas, self.train.shape[1], first.schedule.batch_size, device)
        self.held_out = BatchOrder(self.replicas, self.test.shape[1], EVALUATED, device)

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
        return self.order.batches

    def _scales(self, molecules: Molecules, targets: str | None) -> tuple[Tensor, Tensor]:
        """Return what is subtracted from the targets, and by what they are then divided, (R, 1, T) each."""
        if targets == "raw":
            units = torch.tensor([1000.0 if unit == "meV" else 1.0 for unit in UNITS], dtype=torch.float64)
            return torch.zeros(1, 1, len(units), dtype=torch.float64), units.expand(self.replicas, 1, -1)
        known = [molecules.targets[rows] for rows in self.train.cpu()]
        centre, spread = torch.stack([y.mean(0) for y in known]), torch.stack([y.std(0) for y in known])
        return centre.unsqueeze(1), spread.unsqueeze(1)

    def start_epoch(self, epoch: int) -> None:
        """Draw the order of the molecules, which depends on the seed of the run and the epoch alone."""
        count, orders = self.train.shape[1], []
        for seed in self.seeds:
            stream = torch.Generator().manual_seed(mix_seed(seed, epoch, ORDER))
            orders.append(torch.randperm(count, generator=stream))
        order = torch.stack(orders).to(self.train.device)
        self.order.arrange(self.train.gather(1, order), self.sizes)

    def next_batch(self, order: BatchOrder, *, pairs: bool) -> TrainingBatch:
        """Return the next batch of an order.

        Args:
            order: the order.
            pairs: whether each two molecules share a slot, which they must fit into.
        """
        rows, weight = order.next()
        molecules = paired(self.inputs, rows, self.sizes) if pairs else separate(self.inputs, rows)
        targets = (self.targets[rows] - self.centre) / self.spread
        return TrainingBatch(molecules, targets.float(), weight.unsqueeze(-1))

    def losses(self, batch: TrainingBatch, rows: slice = slice(None)) -> Tensor:
        """Return the mean squared errors (R, T) of some of the networks."""
        part = batch.select(rows)
        out = self.network.heads(self.network.features(part.molecules, rows), rows)
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
    def errors(self, *, pairs: bool) -> Tensor:
        """Return the sums (R, T) of the absolute errors of the next held-out molecules, in the units of the targets."""
        batch = self.next_batch(self.held_out, pairs=pairs)
        difference = (self.network(batch.molecules) - batch.targets).abs() * (batch.weight > 0)
        errors: Tensor = difference.double().sum(1) * self.spread.squeeze(1)
        return errors


def relative_change(errors: Tensor) -> Tensor:
    """Return Δm in % of mean absolute errors (…, T): their mean change relative to single-task models."""
    single = torch.tensor(SINGLE_TASK_MAE, dtype=errors.dtype)
    return 100 * (errors / single - 1).mean(-1)


def molecule_inputs(molecules: Molecules, device: str, dtype: torch.dtype) -> MoleculeBatch:
    """Return the inputs (1, M, N, …) of all molecules. Those of QM9 take 2 GB in half precision."""
    atoms = int(molecules.present().sum(1).max())
    parts = []
    for rows in torch.arange(len(molecules)).split(PREPARED):
        some = molecules[rows].to(device)
        present = some.present()
        edges = edge_inputs(some.bonds, some.distances(), present, dtype)
        parts.append((some.features()[:, :atoms], edges[:, :atoms, :atoms], present[:, None, :atoms]))
    return MoleculeBatch(*(torch.cat(part).unsqueeze(0) for part in zip(*parts, strict=True)))


def _squared_errors(out: Tensor, batch: TrainingBatch) -> Tensor:
    errors: Tensor = (batch.weight * (out - batch.targets).square()).sum(1)
    return errors


@lru_cache(maxsize=2)
def load_molecules(name: str, molecules: int | None, sanitised: bool = False) -> Molecules:
    """Load molecules of QM9, or draw synthetic ones."""
    if name == SYNTHETIC:
        return synthetic_molecules(molecules or 1000)
    return load_qm9(data_folder(), molecules, sanitised=sanitised)
