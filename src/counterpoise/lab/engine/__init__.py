"""One run; many runs at once; resume; local processes, Ray."""

from .batching import Stack, execute, make_stacks, plan, processors
from .config import Recipe, Run, Schedule, Spec, recipe, spec
from .executors import ExecutorName, RunError, make_executor, run_stacks
from .store import CorruptWarning, Store
from .tabular import Columns
from .trainer import Trainer

__all__ = [
    "Columns",
    "CorruptWarning",
    "ExecutorName",
    "Recipe",
    "Run",
    "RunError",
    "Schedule",
    "Spec",
    "Stack",
    "Store",
    "Trainer",
    "execute",
    "make_executor",
    "make_stacks",
    "plan",
    "processors",
    "recipe",
    "run_stacks",
    "spec",
]
