"""Stacks of networks on a tabular data set: seeds and folds side by side."""

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
from ..data.tabular import fold, published_split, standardised
from ..metrics import tabular as scores
from ..models import StackedTabularNet
from .config import Run
from .workload import WORKLOADS, Workload, plain_kernels, shuffled

MOMENTUM, VARIANCE_FLOOR = 0.1, 1e-8  # of the running statistics of targets
ROWS_AT_ONCE = 2048  # in evaluation
FILLS_A_CORE = 1 << 14  # activations of a layer from which stacking hardly saves time on a CPU

Part = tuple[Tensor, Tensor, Tensor]
"""Inputs (R, n, d), targets (R, n, T), and the weight of each row (R, n): 0 where it fills up a shorter part."""


class TabularWorkload(Workload):
    """Options of the data (`Run.data`):

    split: "published", the paper's, with the test rows watched by early stopping; "folds", where the run's seed is also
        the number of the fold.
    targets: "online", standardised by running statistics as the paper's authors did; "train", by those of the training
        rows; "raw". Labels stay as they are.
    scale, pattern: what multiplies the training losses (`data.factors`).
    target: one task alone.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        data = load(first.data.name, data_folder())
        self.schedule, self.replicas = first.schedule, len(runs)
        options = first.data.kwargs
        self.labels = data.entry.kind == "binary"
        self.metrics = scores.LABEL_METRICS if self.labels else scores.REGRESSION_METRICS
        self.targets = "raw" if self.labels else options["targets"]
        columns = [_columns(data, run) for run in runs]
        self.tasks = data.tasks if "target" not in options else ("target",)
        self.factors = torch.stack([_factors(data, run) for run in runs]).to(device)
        parts = _Parts(data, runs, columns, device)
        self.train, self.watched, self.reported = (parts.stacked(p) for p in ("train", "validation", "test"))
        self.same_rows = options["split"] == "published"
        self.sd = torch.stack([_tensor(data.y[:, c].std(0)) for c in columns]).to(device)
        self.centre, self.spread = parts.statistics(self.targets)
        self.seen = torch.zeros((), dtype=torch.bool, device=device)  # whether running statistics have started
        if device != "cpu":  # a device is given all tasks at once: one by one, their small kernels would not fill it
            self.passes = "batched"
        kwargs: dict[str, Any] = {"head_dropout": self.labels} | first.model.kwargs
        seeds = [run.seed for run in runs]
        self.model = StackedTabularNet(seeds, data.x.shape[1], len(self.tasks), **kwargs).to(device)
        self.model.sparse_heads = self.passes == "auto" and self.schedule.precision == "fp32"
        self.network = self.model
        self.rows = torch.arange(self.replicas, device=device).unsqueeze(1)

    @classmethod
    def shape(cls, run: Run) -> tuple[object, ...]:
        options = run.data.kwargs
        return run.data.name, options["split"], options.get("targets"), "target" in options

    @classmethod
    def crowd(cls, run: Run) -> int | None:
        """A wide network fills a core by itself, and runs that stop early would wait for the last of their stack."""
        model = run.model.kwargs
        deep = model.get("trunk", "residual") == "residual"
        return 1 if deep or model.get("width", 256) * run.schedule.batch_size > FILLS_A_CORE else None

    @classmethod
    def burden(cls, run: Run) -> int:
        return sum(CATALOGUE[run.data.name].rows)

    @property
    def steps(self) -> int:
        count, size = self.train[0].shape[1], self.schedule.batch_size
        return max(count // size, 1) if self.schedule.drop_last else -(-count // size)

    def shared_parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters()) if self.schedule.shared == "all" else self.model.trunk_parameters()

    def decaying(self) -> list[bool]:
        return self.model.decaying()

    def batches(self) -> Iterator[list[Tensor]]:
        """Each replica's rows in the order in which a shuffling DataLoader of its own would give them."""
        order = torch.stack([shuffled(stream, self.train[0].shape[1]) for stream in self.model.streams])
        order = order.to(self.rows.device)
        x, y, _ = self.train
        mixed, size = [x[self.rows, order], y[self.rows, order]], self.schedule.batch_size
        for step in range(self.steps):
            yield [part[:, step * size : (step + 1) * size] for part in mixed]

    def losses(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        if self.targets == "online" and torch.is_grad_enabled():
            self._observe(y)
        return self._losses(self.model(x), y, torch.ones_like(y[..., 0])) * self.factors

    def _losses(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        out = out.float() if out.element_size() < 4 else out
        if self.labels:
            return scores.cross_entropies(out, y, weight)
        return scores.squared_errors(out, (y - self.centre) / self.spread, weight)

    def _observe(self, y: Tensor) -> None:
        """The running mean and deviation of the targets: the first batch sets them, each further one moves them."""
        mean, variance = y.mean(1, keepdim=True), y.var(1, keepdim=True, correction=0)
        before = self.spread.square() - VARIANCE_FLOOR
        self.centre = torch.where(self.seen, torch.lerp(self.centre, mean, MOMENTUM), mean)
        variance = torch.where(self.seen, torch.lerp(before, variance, MOMENTUM), variance)
        self.spread = (variance + VARIANCE_FLOOR).sqrt()
        self.seen = torch.ones_like(self.seen)

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        out, y, weight = self._predicted(self.reported)
        measured = {"loss": self._losses(out, y, weight)}
        if self.labels:
            measured |= scores.label_scores(out, y, weight)
        else:
            measured |= scores.regression_scores(out * self.spread + self.centre, y, weight, self.sd)
        if not self.same_rows:
            measured["watched_loss"] = self._losses(*self._predicted(self.watched))
        return measured

    def _predicted(self, part: Part) -> Part:
        x, y, weight = part
        return torch.cat([self.model(rows) for rows in x.split(ROWS_AT_ONCE, 1)], 1), y, weight

    def kernels(self) -> AbstractContextManager[None]:
        return plain_kernels()

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
        device = self.rows.device
        self.centre, self.spread, self.seen = (saved.to(device) for saved in state["targets"])


class _Parts:
    """The rows of all replicas, each standardised with its own training rows; replicas of one split share them."""

    def __init__(self, data: Tabular, runs: Sequence[Run], columns: Sequence[slice], device: str) -> None:
        self.data, self.columns, self.device = data, columns, device
        made: dict[int | None, tuple[Split, Matrix]] = {}
        self.each = []
        for run in runs:
            number = run.seed if run.data.kwargs["split"] == "folds" else None
            if number not in made:
                split = published_split(data.entry) if number is None else fold(data.entry, number)
                made[number] = split, standardised(data.x, split.train)
            self.each.append(made[number])
        self.one = len(made) == 1 and len({(c.start, c.stop) for c in columns}) == 1

    def stacked(self, part: str) -> Part:
        each = self.each[:1] if self.one else self.each
        longest = max(len(getattr(split, part)) for split, _ in each)
        inputs, targets, weights = [], [], []
        for (split, x), columns in zip(each, self.columns, strict=False):
            rows = getattr(split, part)
            filled = np.concatenate([rows, np.repeat(rows[:1], longest - len(rows))])
            inputs.append(_tensor(x[filled]))
            targets.append(_tensor(self.data.y[filled, columns]))
            weights.append(_tensor(np.arange(longest) < len(rows)))
        return self._shared(inputs), self._shared(targets), self._shared(weights)

    def statistics(self, targets: str) -> tuple[Tensor, Tensor]:
        """What targets are standardised with at the start, (R, 1, T)."""
        found = []
        for (split, _), columns in zip(self.each, self.columns, strict=True):
            y = self.data.y[split.train][:, columns]
            found.append((y.mean(0), y.std(0)) if targets == "train" else (np.zeros(y.shape[1]), np.ones(y.shape[1])))
        centre, spread = (_tensor(np.stack(part)).unsqueeze(1) for part in zip(*found, strict=True))
        return centre.to(self.device), torch.where(spread > 0, spread, 1.0).to(self.device)

    def _shared(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensors of all replicas; one copy seen by all of them, where they share it."""
        stacked = torch.stack(list(tensors)).to(self.device)
        return stacked.expand(len(self.each), *stacked.shape[1:]) if self.one else stacked


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values).to(torch.get_default_dtype())


def _columns(data: Tabular, run: Run) -> slice:
    """Which targets a run has."""
    target = run.data.kwargs.get("target")
    return slice(0, len(data.tasks)) if target is None else slice(target, target + 1)


def _factors(data: Tabular, run: Run) -> Tensor:
    options = run.data.kwargs
    everything = factors(data.tasks, scale=options.get("scale", 1.0), pattern=options.get("pattern", "uniform"))
    return everything[_columns(data, run)]


WORKLOADS.update(dict.fromkeys(CATALOGUE, TabularWorkload))
