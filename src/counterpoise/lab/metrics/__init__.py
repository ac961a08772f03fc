"""Losses and scores of tasks."""

from .task_types import TASK_TYPES, Task, TaskType

__all__ = ["TASK_TYPES", "Task", "TaskType"]
