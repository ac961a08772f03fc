"""The executor for a Ray cluster. Imported only when used, because it needs the extra `ray`."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from ..data.arff import CACHE_VARIABLE
from ..data.locations import VARIABLE
from ..errors import RunError
from .batching import RunBatch, execute
from .function_trainer import FOLDER_VARIABLE
from .jobs import EXTERNAL_ERRORS, CrashError, Job
from .store import Store


@contextmanager
def ray_executor(address: str | None) -> Iterator["RayExecutor"]:
    """Connect to a Ray cluster and yield its executor.

    Args:
        address: the address of the cluster; "auto" for the one of this machine; None to start one on this machine.

    Raises:
        RunError: if the cluster cannot be reached.
    """
    started_here = not ray.is_initialized()
    if started_here:
        variables = {
            name: os.environ[name] for name in (VARIABLE, CACHE_VARIABLE, FOLDER_VARIABLE) if name in os.environ
        }
        options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": logging.ERROR}
        try:
            ray.init(address=address, runtime_env={"env_vars": variables} if variables else None, **options)
        except (ValueError, ConnectionError) as error:
            raise RunError(f"cannot reach Ray at {address!r}: {error}") from error
    try:
        yield RayExecutor()
    finally:
        if started_here:
            ray.shutdown()


class RayExecutor:
    """Run each batch as one Ray task. A batch whose node dies is started on another one.

    If all nodes share the output folder, such a batch resumes from its checkpoint. Workers also return what they wrote,
    so no result is lost if the folder is not shared.
    """

    slots = 10_000  # Ray does the queueing

    def start(self, batch: RunBatch, root: Path) -> Job:
        device = batch.runs[0].device
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0, "num_gpus": int(device.startswith("cuda"))}
        return _RayJob(batch, root, _work.options(**options).remote(batch, str(root)))


class _RayJob:
    def __init__(self, batch: RunBatch, root: Path, reference: Any) -> None:
        self.batch, self.root, self.reference = batch, root, reference

    def done(self) -> bool:
        ready, _ = ray.wait([self.reference], timeout=0)
        if not ready:
            return False
        try:
            results = ray.get(self.reference)
        except ray.exceptions.RayTaskError as error:
            message = error.cause if isinstance(error.cause, EXTERNAL_ERRORS) else f"\n{error}"
            raise RunError(f"{self.batch} failed: {message}") from error
        except ray.exceptions.RayError as error:
            raise CrashError(type(error).__name__) from error
        store = Store(self.root)
        for run, (history, result) in zip(self.batch.runs, results, strict=True):
            if store.result(run) is None:  # the worker wrote to another folder
                store.finish(run, history, result)
        return True


@ray.remote
def _work(batch: RunBatch, root: str) -> list[tuple[Any, Any]]:
    execute(batch, root)
    store = Store(root)
    return [(store.history(run), store.result(run)) for run in batch.runs]
