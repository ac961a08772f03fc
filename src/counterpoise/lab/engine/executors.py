"""Where stacks run: here, in local processes, or on a Ray cluster."""

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
from typing import Any, Literal, Protocol

from ..data import DataError
from . import torchrun
from .batching import RunBatch, available_cpus, execute

ExecutorName = Literal["inline", "processes", "ray"]
ATTEMPTS = 3
POLL_SECONDS = 0.1
OUTSIDE = (DataError, OSError)
"""What goes wrong outside of the program, with data or disks: the message says what, and a traceback nothing more."""


class RunError(RuntimeError):
    """A stack that failed, with what its worker said."""


class CrashError(Exception):
    """A worker that vanished without a word: its stack is tried again."""


class Job(Protocol):
    def done(self) -> bool:
        """Whether the stack has ended; raises CrashError, or RunError with the worker's own words."""


class Executor(Protocol):
    slots: int

    def start(self, stack: RunBatch, root: Path) -> Job: ...


def run_batches(
    stacks: Sequence[RunBatch],
    root: Path,
    executor: Executor,
    watch: Callable[[Sequence[RunBatch], Sequence[RunBatch]], None] = lambda running, ended: None,
) -> None:
    """Runs stacks, as many at once as the executor has slots; a stack whose worker was killed goes on elsewhere.

    `watch` is called all the while with the stacks that run and those that have just ended.
    """
    waiting = deque((stack, 1) for stack in sorted(stacks, key=lambda s: -s.work))
    running: list[tuple[RunBatch, int, Job]] = []
    while waiting or running:
        while waiting and len(running) < executor.slots:
            stack, attempt = waiting.popleft()
            running.append((stack, attempt, executor.start(stack, root)))
        ended: list[tuple[RunBatch, int, Job]] = []
        still: list[tuple[RunBatch, int, Job]] = []
        for stack, attempt, job in running:
            try:
                (ended if job.done() else still).append((stack, attempt, job))
            except CrashError as crash:
                if attempt == ATTEMPTS:
                    raise RunError(f"{stack}: its worker was lost {ATTEMPTS} times ({crash})") from crash
                waiting.append((stack, attempt + 1))
        running = still
        watch([stack for stack, _, _ in running], [stack for stack, _, _ in ended])
        if running and not ended:
            time.sleep(POLL_SECONDS)


class Inline:
    """In this process, one stack after another."""

    slots = 1

    def start(self, stack: RunBatch, root: Path) -> Job:
        try:
            execute(stack, root)
        except OUTSIDE as error:
            raise RunError(f"{stack} failed: {error}") from error
        return _Ended()


class _Ended:
    def done(self) -> bool:
        return True


class Processes:
    """In processes of this machine, one for each stack and one thread for each process."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.jobs: list[_Process] = []
        self.context: BaseContext = multiprocessing.get_context("spawn")
        if sys.platform != "win32":
            from multiprocessing.forkserver import ensure_running

            # A server that has imported torch and the command once, and forks: a worker starts in milliseconds.
            self.context = multiprocessing.get_context("forkserver")
            self.context.set_forkserver_preload(["__main__", "counterpoise.lab.engine.executors"])
            ensure_running()  # it imports while the parent goes on

    def start(self, stack: RunBatch, root: Path) -> Job:
        job = _Process(self.context, stack, root)
        self.jobs.append(job)
        return job

    def stop(self) -> None:
        for job in self.jobs:
            job.process.kill()
            job.process.join()


class _Process:
    def __init__(self, context: Any, stack: RunBatch, root: Path) -> None:
        self.stack = stack
        self.words, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(stack, root, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def done(self) -> bool:
        if self.process.is_alive():
            return False
        self.process.join()
        try:
            error = self.words.recv() if self.words.poll() else ""
        except EOFError:
            error = ""
        if error:
            raise RunError(f"{self.stack} failed: {error}")
        if self.process.exitcode:
            raise CrashError(f"exit code {self.process.exitcode}")
        return True


def _work(stack: RunBatch, root: Path, words: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group: the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        execute(stack, root)
    except Exception as error:
        words.send(str(error) if isinstance(error, OUTSIDE) else f"\n{traceback.format_exc()}")
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers: they leave by themselves. What is on disk is whole."""
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
    yield Inline()


@contextmanager
def _together(device: str) -> Iterator[Executor]:
    """All processes that torchrun has started, on one stack after another."""
    with torchrun.process_group(device):
        yield Inline()


def make_executor(
    name: ExecutorName, *, jobs: int | None = None, address: str | None = None, device: str = "cpu"
) -> AbstractContextManager[Executor]:
    """An executor, to be entered: leaving it ends its workers."""
    if torchrun.started_by_torchrun():
        return _together(device)
    if name == "inline":
        return _inline()
    if name == "processes":
        return _processes(jobs or (available_cpus() if device == "cpu" else 1))
    if name == "ray":
        from .ray_executor import ray_executor

        return ray_executor(address)
    raise ValueError(f"unknown executor {name!r}, expected 'inline', 'processes' or 'ray'")
