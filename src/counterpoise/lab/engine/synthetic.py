"""The workload of the synthetic studies: small networks on generated rows."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ..data import PROBLEMS, Dataset, training_factors
from ..metrics import TASK_TYPES
from ..metrics.task_types import at_least_float32
from ..models import StackedMLP
from .config import Run
from .torch_settings import disable_onednn
from .workload import Workload, draw_seed, shuffled_order


class SyntheticWorkload(Workload):
    """R small networks, each on its own generated data set in memory."""

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        problem = PROBLEMS[first.data.name]
        self.replicas, self.tasks = len(runs), tuple(task.name for task in problem.tasks)
        self.task_types = [TASK_TYPES[task.task_type] for task in problem.tasks]
        self.schedule = first.schedule
        datasets = _generate_datasets(runs)
        self.train = _stack_rows(datasets, "train", device)
        self.held_out = _stack_rows(datasets, "held_out", device)
        self.factors = torch.stack([training_factors(run.data.name, run.data.kwargs) for run in runs]).to(device)
        widths = [task.width for task in problem.tasks]
        seeds = [run.seed for run in runs]
        self.model = StackedMLP(seeds, datasets[0].x.shape[1], widths, **first.model.kwargs).to(device)
        self.network = self.model
        self.replica_index = torch.arange(self.replicas, device=device).unsqueeze(1)

    @property
    def steps(self) -> int:
        count, size = self.train[0].shape[1], self.schedule.batch_size
        return count // size if self.schedule.drop_last else -(-count // size)

    def shared_parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters()) if self.schedule.shared == "all" else self.model.trunk_parameters()

    def batches(self) -> Iterator[list[Tensor]]:
        """Yield rows in the order of a shuffling DataLoader that uses the global stream of a single run."""
        order = torch.stack([shuffled_order(stream, self.train[0].shape[1]) for stream in self.model.streams])
        order = order.to(self.replica_index.device)
        shuffled = [part[self.replica_index, order] for part in self.train]
        size = self.schedule.batch_size
        for step in range(self.steps):
            yield [part[:, step * size : (step + 1) * size] for part in shuffled]

    def losses(self, batch: list[Tensor]) -> Tensor:
        x, *targets = batch
        outputs = [at_least_float32(out) for out in self.model(x)]
        triples = zip(self.task_types, outputs, targets, strict=True)
        return torch.stack([task_type.loss(out, y) for task_type, out, y in triples], 1) * self.factors

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        for stream in self.model.streams:
            draw_seed(stream)  # a validation DataLoader also draws a base seed
        x, *targets = self.held_out
        outputs = [at_least_float32(out) for out in self.model(x)]
        triples = list(zip(self.task_types, outputs, targets, strict=True))
        return {
            "score": torch.stack([task_type.score(out, y) for task_type, out, y in triples], 1),
            "loss": torch.stack([task_type.loss(out, y) for task_type, out, y in triples], 1),
        }

    def kernel_settings(self) -> AbstractContextManager[None]:
        return disable_onednn()

    def state_dict(self) -> dict[str, Any]:
        return {"streams": [stream.get_state() for stream in self.model.streams]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stream, saved in zip(self.model.streams, state["streams"], strict=True):
            stream.set_state(saved)


def _generate_datasets(runs: Sequence[Run]) -> list[Dataset]:
    """Return the data set of each run. Runs that differ only in their loss factors share one."""
    generated: dict[tuple[int, str], Dataset] = {}
    datasets = []
    for run in runs:
        options = {} if run.data.name == "rescaling" else run.data.kwargs
        key = (run.seed, repr(options))
        if key not in generated:
            generated[key] = PROBLEMS[run.data.name].draw(run.seed, **options)
        datasets.append(generated[key])
    return datasets


def _stack_rows(datasets: Sequence[Dataset], part: str, device: str) -> list[Tensor]:
    """Return the inputs and each target of one part of all replicas, (R, rows, …)."""
    columns = zip(*((d.x[getattr(d, part)], *(y[getattr(d, part)] for y in d.y)) for d in datasets), strict=True)
    return [torch.stack(column).to(device) for column in columns]
