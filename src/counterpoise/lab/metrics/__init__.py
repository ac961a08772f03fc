"""How tasks are trained and scored."""

from .task_types import KINDS, Kind, Task

__all__ = ["KINDS", "Kind", "Task"]
