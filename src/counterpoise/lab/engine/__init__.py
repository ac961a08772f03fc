"""One run; many runs at once; resume; local processes, Ray."""

from .batching import RunBatch, available_cpus, execute, make_run_batches, plan
from .config import Recipe, Run, Schedule, Spec, recipe, spec
from .executors import ExecutorName, RunError, make_executor, run_batches
from .store import CorruptWarning, Store
from .tabular import TabularWorkload
from .trainer import Trainer

__all__ = [
    "TabularWorkload",
    "CorruptWarning",
    "ExecutorName",
    "Recipe",
    "Run",
    "RunError",
    "Schedule",
    "Spec",
    "RunBatch",
    "Store",
    "Trainer",
    "execute",
    "make_executor",
    "make_run_batches",
    "plan",
    "available_cpus",
    "recipe",
    "run_batches",
    "spec",
]
