"""The workload of the tabular studies: seeds and folds of one data set, trained together."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data import CATALOGUE, Split, Tabular, factors, load
from ..data.arff import Matrix
from ..data.locations import data_folder
from ..data.tabular import fold_split, published_split, standardise
from ..metrics import tabular as scores
from ..models import StackedTabularNet
from .config import Run
from .torch_settings import disable_onednn
from .workload import Workload, shuffled_order

MOMENTUM, VARIANCE_FLOOR = 0.1, 1e-8  # of the running statistics of the targets
EVALUATION_ROWS = 2048  # rows per forward pass in evaluation
SATURATING_ACTIVATIONS = 1 << 14  # activations per layer above which training runs together saves little time on a CPU

Part = tuple[Tensor, Tensor, Tensor]
"""Inputs (R, n, d), targets (R, n, T), and the weight of each row (R, n), which is 0 for padding."""


class TabularWorkload(Workload):
    """R networks on splits of one tabular data set.

    Options of the data (`Run.data`):

    split: "published", the split of the paper, where early stopping uses the test rows; or "folds", where the seed of
        the run is also the number of the fold.
    targets: "online", standardised by running statistics as in the paper's experiments; "train", standardised by the
        statistics of the training rows; or "raw". Binary labels are not changed.
    scale, pattern: the factors of the training losses (see `data.factors`).
    target: the number of a single target to train on.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        data = load(first.data.name, data_folder())
        self.schedule, self.replicas = first.schedule, len(runs)
        options = first.data.kwargs
        self.labels = data.entry.kind == "binary"
        self.metrics = scores.LABEL_METRICS if self.labels else scores.REGRESSION_METRICS
        self.targets = "raw" if self.labels else options["targets"]
        columns = [_target_columns(data, run) for run in runs]
        self.tasks = data.tasks if "target" not in options else ("target",)
        self.factors = torch.stack([_loss_factors(data, run) for run in runs]).to(device)
        splits = _StackedSplits(data, runs, columns, device)
        self.train, self.watched, self.reported = (splits.part(name) for name in ("train", "validation", "test"))
        self.watches_reported = options["split"] == "published"
        self.sd = torch.stack([_to_tensor(data.y[:, c].std(0)) for c in columns]).to(device)
        self.centre, self.spread = splits.target_statistics(self.targets)
        self.seen = torch.zeros((), dtype=torch.bool, device=device)  # whether the running statistics have started
        if device != "cpu":  # task by task, the small kernels would not fill a GPU
            self.passes = "batched"
        kwargs: dict[str, Any] = {"head_dropout": self.labels} | first.model.kwargs
        seeds = [run.seed for run in runs]
        self.model = StackedTabularNet(seeds, data.x.shape[1], len(self.tasks), **kwargs).to(device)
        self.model.sparse_heads = self.passes == "auto" and self.schedule.precision == "fp32"
        self.network = self.model
        self.replica_index = torch.arange(self.replicas, device=device).unsqueeze(1)

    @classmethod
    def shape_key(cls, run: Run) -> tuple[object, ...]:
        options = run.data.kwargs
        return run.data.name, options["split"], options.get("targets"), "target" in options

    @classmethod
    def max_replicas(cls, run: Run) -> int | None:
        """Return 1 for a wide network: it fills a core alone, and with others it would wait for the last to stop."""
        model = run.model.kwargs
        residual = model.get("trunk", "residual") == "residual"
        activations = model.get("width", 256) * run.schedule.batch_size
        return 1 if residual or activations > SATURATING_ACTIVATIONS else None

    @classmethod
    def relative_cost(cls, run: Run) -> int:
        return sum(CATALOGUE[run.data.name].rows)

    @property
    def steps(self) -> int:
        count, size = self.train[0].shape[1], self.schedule.batch_size
        return max(count // size, 1) if self.schedule.drop_last else -(-count // size)

    def shared_parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters()) if self.schedule.shared == "all" else self.model.trunk_parameters()

    def decay_mask(self) -> list[bool]:
        return self.model.decay_mask()

    def batches(self) -> Iterator[list[Tensor]]:
        """Yield each replica's rows in the order of its own shuffling DataLoader."""
        order = torch.stack([shuffled_order(stream, self.train[0].shape[1]) for stream in self.model.streams])
        order = order.to(self.replica_index.device)
        x, y, _ = self.train
        shuffled, size = [x[self.replica_index, order], y[self.replica_index, order]], self.schedule.batch_size
        for step in range(self.steps):
            yield [part[:, step * size : (step + 1) * size] for part in shuffled]

    def losses(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        if self.targets == "online" and torch.is_grad_enabled():
            self._update_statistics(y)
        return self._losses(self.model(x), y, torch.ones_like(y[..., 0])) * self.factors

    def _losses(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        out = out.float() if out.element_size() < 4 else out
        if self.labels:
            return scores.cross_entropies(out, y, weight)
        return scores.squared_errors(out, (y - self.centre) / self.spread, weight)

    def _update_statistics(self, y: Tensor) -> None:
        """Update the running mean and deviation of the targets. The first batch sets them."""
        mean, variance = y.mean(1, keepdim=True), y.var(1, keepdim=True, correction=0)
        before = self.spread.square() - VARIANCE_FLOOR
        self.centre = torch.where(self.seen, torch.lerp(self.centre, mean, MOMENTUM), mean)
        variance = torch.where(self.seen, torch.lerp(before, variance, MOMENTUM), variance)
        self.spread = (variance + VARIANCE_FLOOR).sqrt()
        self.seen = torch.ones_like(self.seen)

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        out, y, weight = self._predict(self.reported)
        measured = {"loss": self._losses(out, y, weight)}
        if self.labels:
            measured |= scores.label_scores(out, y, weight)
        else:
            measured |= scores.regression_scores(out * self.spread + self.centre, y, weight, self.sd)
        if not self.watches_reported:
            measured["watched_loss"] = self._losses(*self._predict(self.watched))
        return measured

    def _predict(self, part: Part) -> Part:
        """Return the outputs, targets and row weights of a part."""
        x, y, weight = part
        return torch.cat([self.model(rows) for rows in x.split(EVALUATION_ROWS, 1)], 1), y, weight

    def kernel_settings(self) -> AbstractContextManager[None]:
        return disable_onednn()

    def state_dict(self) -> dict[str, Any]:
        return {
            "streams": [stream.get_state() for stream in self.model.streams],
            "dropout": self.model.dropout.counter,
            "targets": [self.centre, self.spread, self.seen],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stream, saved in zip(self.model.streams, state["streams"], strict=True):
            stream.set_state(saved)
        self.model.dropout.counter.copy_(state["dropout"])
        device = self.replica_index.device
        self.centre, self.spread, self.seen = (saved.to(device) for saved in state["targets"])


class _StackedSplits:
    """The splits of all replicas, each standardised by its own training rows. Equal splits are loaded once."""

    def __init__(self, data: Tabular, runs: Sequence[Run], columns: Sequence[slice], device: str) -> None:
        self.data, self.columns, self.device = data, columns, device
        loaded: dict[int | None, tuple[Split, Matrix]] = {}
        self.splits = []
        for run in runs:
            number = run.seed if run.data.kwargs["split"] == "folds" else None
            if number not in loaded:
                split = published_split(data.entry) if number is None else fold_split(data.entry, number)
                loaded[number] = split, standardise(data.x, split.train)
            self.splits.append(loaded[number])
        self.all_equal = len(loaded) == 1 and len({(c.start, c.stop) for c in columns}) == 1

    def part(self, name: str) -> Part:
        """Return "train", "validation" or "test" of all replicas, padded to the longest."""
        splits = self.splits[:1] if self.all_equal else self.splits
        longest = max(len(getattr(split, name)) for split, _ in splits)
        inputs, targets, weights = [], [], []
        for (split, x), columns in zip(splits, self.columns, strict=False):
            rows = getattr(split, name)
            padded = np.concatenate([rows, np.repeat(rows[:1], longest - len(rows))])
            inputs.append(_to_tensor(x[padded]))
            targets.append(_to_tensor(self.data.y[padded, columns]))
            weights.append(_to_tensor(np.arange(longest) < len(rows)))
        return self._stack(inputs), self._stack(targets), self._stack(weights)

    def target_statistics(self, targets: str) -> tuple[Tensor, Tensor]:
        """Return the initial mean and deviation of the targets, (R, 1, T)."""
        statistics = []
        for (split, _), columns in zip(self.splits, self.columns, strict=True):
            y = self.data.y[split.train][:, columns]
            identity = np.zeros(y.shape[1]), np.ones(y.shape[1])
            statistics.append((y.mean(0), y.std(0)) if targets == "train" else identity)
        centre, spread = (_to_tensor(np.stack(part)).unsqueeze(1) for part in zip(*statistics, strict=True))
        return centre.to(self.device), torch.where(spread > 0, spread, 1.0).to(self.device)

    def _stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Stack the tensors of all replicas; if all are equal, return views of one copy."""
        stacked = torch.stack(list(tensors)).to(self.device)
        return stacked.expand(len(self.splits), *stacked.shape[1:]) if self.all_equal else stacked


def _to_tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values).to(torch.get_default_dtype())


def _target_columns(data: Tabular, run: Run) -> slice:
    target = run.data.kwargs.get("target")
    return slice(0, len(data.tasks)) if target is None else slice(target, target + 1)


def _loss_factors(data: Tabular, run: Run) -> Tensor:
    options = run.data.kwargs
    all_factors = factors(data.tasks, scale=options.get("scale", 1.0), pattern=options.get("pattern", "uniform"))
    return all_factors[_target_columns(data, run)]
