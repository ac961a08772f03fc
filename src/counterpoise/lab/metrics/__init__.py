"""How tasks are trained and scored."""

from .task_types import TASK_TYPES, Task, TaskType

__all__ = ["TASK_TYPES", "TaskType", "Task"]
