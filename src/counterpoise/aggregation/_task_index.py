"""The index of a task that an option names."""

from collections.abc import Sequence

from ..inputs import format_names


def task_index(owner: object, option: str, given: int | str, tasks: Sequence[str]) -> int:
    """Return the index of a task that is given by name or by index."""
    if isinstance(given, str) and given in tasks:
        return tasks.index(given)
    if isinstance(given, int) and -len(tasks) <= given < len(tasks):
        return given % len(tasks)
    expected = f"one of {format_names(tuple(tasks))}, or its index"
    raise ValueError(f"{type(owner).__name__}: {option} is {given!r}, expected {expected}")
