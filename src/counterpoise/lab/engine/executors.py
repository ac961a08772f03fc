"""Executors: run batches of runs in this process, in local processes, or on a Ray cluster."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal

from ..errors import RunError
from . import torchrun
from .batching import RunBatch, available_cpus, execute
from .jobs import EXTERNAL_ERRORS, CrashError, Executor, Job

ExecutorName = Literal["inline", "processes", "ray"]
ATTEMPTS = 3
POLL_SECONDS = 0.1


def run_batches(
    batches: Sequence[RunBatch],
    root: Path,
    executor: Executor,
    callback: Callable[[Sequence[RunBatch], Sequence[RunBatch]], None] = lambda running, ended: None,
    on_failure: Callable[[RunBatch, RunError], None] | None = None,
) -> None:
    """Run batches of runs, as many at a time as the executor has slots, and retry those whose worker crashed.

    Args:
        batches: what to run. The most expensive batch starts first.
        root: the output folder.
        executor: where to run.
        callback: called at each poll with the running batches and those that have just ended.
        on_failure: called with a batch that failed, and its error; the other batches continue. A batch that fails in
            this process raises its error in any case, for a debugger. None: the first failure stops all batches.

    Raises:
        RunError: if a batch failed, or if its worker crashed three times.
    """
    waiting = deque((batch, 1) for batch in sorted(batches, key=lambda batch: -batch.work))
    running: list[tuple[RunBatch, int, Job]] = []
    while waiting or running:
        while waiting and len(running) < executor.slots:
            batch, attempt = waiting.popleft()
            running.append((batch, attempt, executor.start(batch, root)))
        ended: list[RunBatch] = []
        unfinished: list[tuple[RunBatch, int, Job]] = []
        for batch, attempt, job in running:
            try:
                if _is_done(batch, attempt, job):
                    ended.append(batch)
                else:
                    unfinished.append((batch, attempt, job))
            except CrashError:
                waiting.append((batch, attempt + 1))
            except RunError as error:
                if on_failure is None:
                    raise
                on_failure(batch, error)
                ended.append(batch)
        running = unfinished
        callback([batch for batch, _, _ in running], ended)
        if running and not ended:
            time.sleep(POLL_SECONDS)


def _is_done(batch: RunBatch, attempt: int, job: Job) -> bool:
    """Return whether a batch has ended.

    Raises:
        CrashError: if its worker crashed and it can be tried again.
        RunError: if it failed, or if its worker crashed in the last attempt.
    """
    try:
        return job.done()
    except CrashError as crash:
        if attempt == ATTEMPTS:
            raise RunError(f"{batch}: its worker crashed {ATTEMPTS} times ({crash})") from crash
        raise


class InlineExecutor:
    """Run batches one after another in this process."""

    slots = 1

    def start(self, batch: RunBatch, root: Path) -> Job:
        try:
            execute(batch, root)
        except EXTERNAL_ERRORS as error:
            raise RunError(f"{batch} failed: {error}") from error
        return _FinishedJob()


class _FinishedJob:
    def done(self) -> bool:
        return True


class ProcessExecutor:
    """Run each batch in its own single-threaded process of this machine."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.jobs: list[_ProcessJob] = []
        self.context: BaseContext = multiprocessing.get_context("spawn")
        if sys.platform != "win32":
            from multiprocessing.forkserver import ensure_running

            # The server imports torch and the command once, so that a forked worker starts in milliseconds.
            self.context = multiprocessing.get_context("forkserver")
            self.context.set_forkserver_preload(["__main__", "counterpoise.lab.engine.executors"])
            ensure_running()  # imports in the background

    def start(self, batch: RunBatch, root: Path) -> Job:
        job = _ProcessJob(self.context, batch, root)
        self.jobs.append(job)
        return job

    def stop(self) -> None:
        for job in self.jobs:
            job.process.kill()
            job.process.join()


class _ProcessJob:
    def __init__(self, context: Any, batch: RunBatch, root: Path) -> None:
        self.batch = batch
        self.errors, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(batch, root, sender), daemon=True)
        self.process.start()
        sender.close()

    def done(self) -> bool:
        if self.process.is_alive():
            return False
        self.process.join()
        try:
            error = self.errors.recv() if self.errors.poll() else ""
        except EOFError:
            error = ""
        if error:
            raise RunError(f"{self.batch} failed: {error}")
        if self.process.exitcode:
            raise CrashError(f"exit code {self.process.exitcode}")
        return True


def _work(batch: RunBatch, root: Path, errors: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        execute(batch, root)
    except Exception as error:
        errors.send(str(error) if isinstance(error, EXTERNAL_ERRORS) else f"\n{traceback.format_exc()}")
        raise SystemExit(1) from None


def _exit_with_parent() -> None:
    """Exit when the parent has been killed, which then cannot stop its workers. Files on disk are always complete."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _processes(jobs: int) -> Iterator[Executor]:
    pool = ProcessExecutor(jobs)
    try:
        yield pool
    finally:
        pool.stop()


@contextmanager
def _inline() -> Iterator[Executor]:
    yield InlineExecutor()


@contextmanager
def _torchrun(device: str) -> Iterator[Executor]:
    """Train one batch after another with all processes that torchrun has started."""
    with torchrun.process_group(device):
        yield InlineExecutor()


def make_executor(
    name: ExecutorName, *, jobs: int | None = None, address: str | None = None, device: str = "cpu"
) -> AbstractContextManager[Executor]:
    """Return a context manager that yields an executor and stops its workers on exit.

    Args:
        name: "inline", "processes" or "ray".
        jobs: the number of processes; by default one per CPU, or one for a GPU.
        address: the Ray cluster; see `ray_executor`.
        device: the device of the runs.

    Under torchrun, all its processes train together, whatever the name.
    """
    if torchrun.started_by_torchrun():
        return _torchrun(device)
    if name == "inline":
        return _inline()
    if name == "processes":
        return _processes(jobs or (available_cpus() if device == "cpu" else 1))
    if name == "ray":
        from .ray_executor import ray_executor

        return ray_executor(address)
    raise ValueError(f"unknown executor {name!r}, expected 'inline', 'processes' or 'ray'")
