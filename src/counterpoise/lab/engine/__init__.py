"""Training of runs: configuration, trainers, batches of runs, results on disk, executors."""

from ..errors import CorruptWarning, RunError
from .batching import RunBatch, available_cpus, execute, execute_in_steps, make_run_batches, plan
from .config import Recipe, Run, Schedule, Spec, recipe, spec
from .executors import ExecutorName, make_executor, run_batches
from .store import Store
from .trainer import Trainer

__all__ = [
    "CorruptWarning",
    "ExecutorName",
    "Recipe",
    "Run",
    "RunBatch",
    "RunError",
    "Schedule",
    "Spec",
    "Store",
    "Trainer",
    "available_cpus",
    "execute",
    "execute_in_steps",
    "make_executor",
    "make_run_batches",
    "plan",
    "recipe",
    "run_batches",
    "spec",
]
