"""Stacks on a Ray cluster. Imported only where it is used: it needs the extra `ray`."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from ..data.arff import CACHE_VARIABLE
from ..data.locations import VARIABLE
from .batching import RunBatch, execute
from .executors import OUTSIDE, CrashError, Job, RunError
from .store import Store


@contextmanager
def ray_executor(address: str | None) -> Iterator["RayExecutor"]:
    """Connects to the cluster at `address` ("auto": the one of this machine; None: a new one on this machine)."""
    mine = not ray.is_initialized()
    if mine:
        variables = {name: os.environ[name] for name in (VARIABLE, CACHE_VARIABLE) if name in os.environ}
        options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": logging.ERROR}
        try:
            ray.init(address=address, runtime_env={"env_vars": variables} if variables else None, **options)
        except (ValueError, ConnectionError) as error:
            raise RunError(f"cannot reach Ray at {address!r}: {error}") from error
    try:
        yield RayExecutor()
    finally:
        if mine:
            ray.shutdown()


class RayExecutor:
    """One task for each stack; Ray finds it a processor (or a GPU). A stack whose node dies is started elsewhere.

    The output folder is best shared by all nodes: then a stack goes on from its checkpoint. What a worker wrote also
    comes back with its answer, so nothing is lost where it is not shared.
    """

    slots = 10_000  # Ray does the queueing

    def start(self, stack: RunBatch, root: Path) -> Job:
        device = stack.runs[0].device
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0, "num_gpus": int(device.startswith("cuda"))}
        return _Task(stack, root, _work.options(**options).remote(stack, str(root)))


class _Task:
    def __init__(self, stack: RunBatch, root: Path, answer: Any) -> None:
        self.stack, self.root, self.answer = stack, root, answer

    def done(self) -> bool:
        ready, _ = ray.wait([self.answer], timeout=0)
        if not ready:
            return False
        try:
            found = ray.get(self.answer)
        except ray.exceptions.RayTaskError as error:
            words = error.cause if isinstance(error.cause, OUTSIDE) else f"\n{error}"
            raise RunError(f"{self.stack} failed: {words}") from error
        except ray.exceptions.RayError as error:
            raise CrashError(type(error).__name__) from error
        store = Store(self.root)
        for run, (history, result) in zip(self.stack.runs, found, strict=True):
            if store.result(run) is None:  # the worker's folder is not ours
                store.finish(run, history, result)
        return True


@ray.remote
def _work(stack: RunBatch, root: str) -> list[tuple[Any, Any]]:
    execute(stack, root)
    store = Store(root)
    return [(store.history(run), store.result(run)) for run in stack.runs]
