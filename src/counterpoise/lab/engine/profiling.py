"""Measurement of the time and memory of several runs that take turns in one process."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from .config import Run
from .dense import DenseTrainer

MEMORY_EPOCH = 1  # the epoch in which memory is measured, without CUDA graphs
WARM_UP = 2  # epochs that are not timed: compilation, cuDNN benchmarks, and the memory epoch


class ProfilingTrainer:
    """Train runs in turns, one epoch each, in an order that rotates with every epoch.

    A slowdown of the machine therefore affects all runs. Times are not reproducible, unlike the rest of a run.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.trainers = [DenseTrainer(run) for run in runs]
        self.epoch = 0

    @property
    def done(self) -> bool:
        return all(trainer.done for trainer in self.trainers)

    @property
    def latest_value(self) -> float:
        return self.trainers[0].latest_value

    @property
    def history(self) -> list[list[dict[str, Any]]]:
        return [trainer.rows for trainer in self.trainers]

    def train_epoch(self) -> None:
        count = len(self.trainers)
        for place in range(count):
            self._train_measured(self.trainers[(place + self.epoch) % count])
        self.epoch += 1

    def _train_measured(self, trainer: DenseTrainer) -> None:
        cuda = trainer.device.startswith("cuda")
        if cuda:
            torch.cuda.synchronize(trainer.device)
            torch.cuda.reset_peak_memory_stats(trainer.device)
        others = sum(_persistent_bytes(other) for other in self.trainers if other is not trainer)
        measures_memory = trainer.epoch == MEMORY_EPOCH
        start = time.perf_counter()
        with trainer.without_cuda_graphs() if measures_memory else nullcontext():
            trainer.train_epoch()
        if cuda:
            torch.cuda.synchronize(trainer.device)
        trainer.rows[-1]["seconds"] = time.perf_counter() - start
        if cuda and measures_memory:
            trainer.rows[-1]["memory_mb"] = (torch.cuda.max_memory_allocated(trainer.device) - others) / 2**20

    def results(self) -> list[dict[str, Any]]:
        """Return the results of the runs, with the median time of an epoch and the peak memory."""
        results = []
        for trainer in self.trainers:
            (result,) = trainer.results()
            counted = trainer.rows[WARM_UP:] or trainer.rows
            seconds = torch.tensor([row["seconds"] for row in counted], dtype=torch.float64)
            memory = max((row["memory_mb"] for row in trainer.rows if "memory_mb" in row), default=float("nan"))
            times = {"epoch_seconds": float(seconds.median()), "total_seconds": float(seconds.sum())}
            result["metrics"] = result["metrics"] | times | {"memory_mb": memory, "parameters": result["parameters"]}
            results.append(result)
        return results

    def pictures(self) -> list[dict[str, bytes]]:
        return [{} for _ in self.trainers]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "trainers": [trainer.state_dict() for trainer in self.trainers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        for trainer, saved in zip(self.trainers, state["trainers"], strict=True):
            trainer.load_state_dict(saved)


def _persistent_bytes(trainer: DenseTrainer) -> int:
    """Return the GPU memory that a trainer uses between epochs."""
    tensors = [
        *trainer.network.state_dict().values(),
        *trainer.best_state.values(),
        *trainer.balancer.state_dict().values(),
    ]
    tensors += [p.grad for p in trainer.network.parameters() if p.grad is not None]
    for optimizer in trainer.optim.optimizers:
        tensors += [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor) and t.is_cuda)
