"""The choice of the trainer for a batch of runs."""

import gc
from collections.abc import Sequence
from typing import Any, Protocol

from ..data.dense import DENSE
from ..data.pde import EQUATIONS
from .config import Run
from .dense import DenseTrainer
from .function_trainer import FUNCTION, FunctionTrainer
from .pinn import PinnTrainer
from .profiling import ProfilingTrainer
from .qm9 import QM9Trainer
from .qm9_workload import MOLECULES
from .trainer import Trainer


class TrainerProtocol(Protocol):
    """The interface of all trainers. The state can be saved and loaded between epochs."""

    epoch: int

    @property
    def done(self) -> bool: ...
    @property
    def latest_value(self) -> float: ...
    @property
    def history(self) -> list[list[dict[str, Any]]]: ...
    def train_epoch(self) -> None: ...
    def results(self) -> list[dict[str, Any]]: ...
    def pictures(self) -> list[dict[str, bytes]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def is_dense(run: Run) -> bool:
    """Return whether a run predicts images."""
    return run.data.name in DENSE


def is_pinn(run: Run) -> bool:
    """Return whether a run solves a differential equation."""
    return run.data.name in EQUATIONS


def is_molecular(run: Run) -> bool:
    """Return whether a run predicts properties of molecules."""
    return run.data.name in MOLECULES


def is_function(run: Run) -> bool:
    """Return whether a run calls a user's own training function."""
    return run.data.name == FUNCTION


def runs_alone(run: Run) -> bool:
    """Return whether the trainer of a run takes no other runs."""
    return is_dense(run) or is_function(run)


def is_profiled(run: Run) -> bool:
    """Return whether the time and memory of a run are measured."""
    return is_dense(run) and bool(run.data.kwargs.get("measured"))


def make_trainer(runs: Sequence[Run]) -> TrainerProtocol:
    """Build the trainer of a batch of runs."""
    if is_dense(runs[0]):
        gc.collect()  # an earlier trainer is in a reference cycle and may hold gigabytes of GPU memory
    if is_profiled(runs[0]):
        return ProfilingTrainer(runs)
    if is_pinn(runs[0]):
        return PinnTrainer(runs)
    if is_molecular(runs[0]):
        return QM9Trainer(runs)
    if is_function(runs[0]):
        return FunctionTrainer(runs)
    return DenseTrainer(runs[0]) if is_dense(runs[0]) else Trainer(runs)
