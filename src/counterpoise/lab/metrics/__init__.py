"""How tasks are trained and scored."""

from .kinds import KINDS, Kind, Task

__all__ = ["KINDS", "Kind", "Task"]
