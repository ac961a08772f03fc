"""Several runs in turns in one process, with the time and the memory that each takes."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from .config import Run
from .dense import DenseTrainer

MEMORY_EPOCH = 1  # in which memory is looked at, with steps that are not captured
WARM_UP = 2  # epochs whose time is not counted: compilation, cuDNN's choice of kernels, and that one


class ProfilingTrainer:
    """Trains runs side by side: an epoch of each, and the one that was first goes last in the next.

    So a machine that slows down does so for all of them. Times are no part of what a resumed run would repeat.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.trainers = [DenseTrainer(run) for run in runs]
        self.epoch = 0

    @property
    def done(self) -> bool:
        return all(trainer.done for trainer in self.trainers)

    @property
    def live(self) -> float:
        return self.trainers[0].live

    @property
    def history(self) -> list[list[dict[str, Any]]]:
        return [trainer.rows for trainer in self.trainers]

    def train_epoch(self) -> None:
        count = len(self.trainers)
        for place in range(count):
            self._measured(self.trainers[(place + self.epoch) % count])
        self.epoch += 1

    def _measured(self, trainer: DenseTrainer) -> None:
        cuda = trainer.device.startswith("cuda")
        if cuda:
            torch.cuda.synchronize(trainer.device)
            torch.cuda.reset_peak_memory_stats(trainer.device)
        others = sum(_bytes(other) for other in self.trainers if other is not trainer)
        looked_at = trainer.epoch == MEMORY_EPOCH
        start = time.perf_counter()
        with trainer.uncaptured() if looked_at else nullcontext():
            trainer.train_epoch()
        if cuda:
            torch.cuda.synchronize(trainer.device)
        trainer.rows[-1]["seconds"] = time.perf_counter() - start
        if cuda and looked_at:
            trainer.rows[-1]["memory_mb"] = (torch.cuda.max_memory_allocated(trainer.device) - others) / 2**20

    def results(self) -> list[dict[str, Any]]:
        """Those of the runs, with the median time of an epoch and the memory."""
        found = []
        for trainer in self.trainers:
            (result,) = trainer.results()
            counted = trainer.rows[WARM_UP:] or trainer.rows
            seconds = torch.tensor([row["seconds"] for row in counted], dtype=torch.float64)
            memory = max((row["memory_mb"] for row in trainer.rows if "memory_mb" in row), default=float("nan"))
            times = {"epoch_seconds": float(seconds.median()), "total_seconds": float(seconds.sum())}
            result["metrics"] = result["metrics"] | times | {"memory_mb": memory, "parameters": result["parameters"]}
            found.append(result)
        return found

    def pictures(self) -> list[dict[str, bytes]]:
        return [{} for _ in self.trainers]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "trainers": [trainer.state_dict() for trainer in self.trainers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        for trainer, saved in zip(self.trainers, state["trainers"], strict=True):
            trainer.load_state_dict(saved)


def _bytes(trainer: DenseTrainer) -> int:
    """What a trainer holds between its epochs."""
    held = [
        *trainer.network.state_dict().values(),
        *trainer.best_state.values(),
        *trainer.balancer.state_dict().values(),
    ]
    held += [p.grad for p in trainer.network.parameters() if p.grad is not None]
    for optimizer in trainer.optim.each:
        held += [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.numel() * t.element_size() for t in held if isinstance(t, torch.Tensor) and t.is_cuda)
