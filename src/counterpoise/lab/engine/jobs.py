"""The interface and the errors that all executors share."""

from pathlib import Path
from typing import Protocol

from ..errors import DataError
from .batching import RunBatch
from .function_trainer import FunctionError

EXTERNAL_ERRORS = (DataError, FunctionError, OSError)
"""Errors of data, of disks, or of what a user's function returns. Their message suffices; a traceback adds nothing."""


class CrashError(Exception):
    """Raised when a worker vanished without an error. Its batch is tried again."""


class Job(Protocol):
    """A batch of runs that an executor has started."""

    def done(self) -> bool:
        """Return whether the batch has ended.

        Raises:
            CrashError: if the worker vanished.
            RunError: if the worker failed.
        """


class Executor(Protocol):
    """Runs batches of runs, at most `slots` at a time."""

    slots: int

    def start(self, batch: RunBatch, root: Path) -> Job: ...
