"""Many runs at once: which runs are stacked, and how a stack is run, killed and resumed."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

import counterpoise as cp

from . import torchrun
from .balancer_groups import structure
from .config import Run, content_hash
from .methods import describe
from .store import Store
from .trainers import is_dense, is_profiled, make_trainer
from .workload import WORKLOADS

LARGEST = {("loss", "cpu"): 30, ("gradient", "cpu"): 10, ("loss", "cuda"): 4096, ("gradient", "cuda"): 4096}
"""Replicas in a stack. On a CPU larger ones are hardly faster, and smaller ones keep all processes busy."""

CHECKPOINT_SECONDS = 5.0
CHECKPOINT_SHARE = 0.05  # of the time at most: the checkpoint of a large stack takes long to write


@dataclass(frozen=True)
class RunBatch:
    """Runs that are trained as one program, and resumed as one."""

    runs: tuple[Run, ...]

    @property
    def study(self) -> str:
        return self.runs[0].study

    @property
    def epochs(self) -> int:
        return self.runs[0].schedule.epochs

    @cached_property
    def key(self) -> str:
        return content_hash("\n".join(run.key for run in self.runs))

    @property
    def work(self) -> int:
        """Backward passes over one run's data, about: what takes longest starts first."""
        passes = 10 if space_of(self.runs[0]) == "gradient" else 1
        burdens = (1 if is_dense(run) else WORKLOADS[run.data.name].burden(run) for run in self.runs)
        return sum(burdens) * self.epochs * passes

    def __str__(self) -> str:
        names = sorted({run.recipe.name for run in self.runs})
        problem = self.runs[0].data.name
        where = "" if problem == self.study else f" on {problem}"
        return f"{self.study}: {', '.join(names)}{where} ({len(self.runs)} run{'s' if len(self.runs) > 1 else ''})"


def space_of(run: Run) -> Literal["loss", "gradient"]:
    return describe(run.recipe.name).space


def stackable(run: Run) -> tuple[object, ...]:
    """Runs with equal answers have equal shapes and may be trained together.

    Rates, decays and clips may differ. A gradient-space method works on the gradients of its whole stack, so it stands
    alone. So does every run in fp16, where one replica's overflow would skip the step of all, and every run of dense
    prediction. Runs that are measured take turns in one process: all of a seed together.
    """
    if is_profiled(run):
        return run.study, run.data, run.model, run.schedule, run.device, run.seed
    if is_dense(run):
        return (run.key,)
    method = structure(run.recipe) if space_of(run) == "gradient" else None
    schedule = replace(run.schedule, lr=0.0, weight_decay=0.0, clip=None)
    if schedule.decay == "cosine":  # its last share of lr is the same for all only if lr is
        schedule = replace(schedule, lr=run.network_lr)
    alone = run.key if run.schedule.precision == "fp16" else None
    return run.study, WORKLOADS[run.data.name].shape(run), run.model, schedule, run.device, method, alone


def make_run_batches(runs: Iterable[Run], largest: int | None = None) -> list[RunBatch]:
    """Groups runs into stacks of nearly equal size, runs of one method side by side."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(stackable(run), []).append(run)
    stacks = []
    for group in groups.values():
        order: dict[tuple[object, ...], list[Run]] = {}
        for run in group:
            order.setdefault(structure(run.recipe), []).append(run)
        ordered = [run for section in order.values() for run in section]
        limit = largest or usual_size(ordered[0])
        count = -(-len(ordered) // limit)
        cuts = [round(i * len(ordered) / count) for i in range(count + 1)]
        stacks += [RunBatch(tuple(ordered[a:b])) for a, b in pairwise(cuts)]
    return stacks


def usual_size(run: Run) -> int:
    """How many runs like this one are stacked."""
    device = run.device.split(":")[0]
    own = WORKLOADS[run.data.name].crowd(run) if device == "cpu" and not is_dense(run) else None
    return own or LARGEST[space_of(run), device]


def plan(runs: Sequence[Run], store: Store, largest: int | None = None) -> list[RunBatch]:
    """What is left to do: stacks with a checkpoint whole, of the others the runs that are not finished."""
    left = []
    for stack in make_run_batches(dict.fromkeys(runs), largest):  # a run that stands in two tables is run once
        missing = tuple(run for run in stack.runs if store.result(run, clear=True) is None)
        if missing:
            left.append(stack if store.has_checkpoint(stack.study, stack.key) else RunBatch(missing))
    return left


def execute(
    stack: RunBatch,
    root: Path | str,
    *,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    after_epoch: Callable[[Any], None] | None = None,
) -> None:
    """Trains a stack to its end, from its checkpoint if it has one, and writes what each run of it found.

    In a process group all ranks train it together, and the first one writes.
    """
    with _threads(1 if stack.runs[0].device == "cpu" else torch.get_num_threads()):
        _execute(stack, Store(root), checkpoint_seconds, after_epoch)


def _execute(stack: RunBatch, store: Store, checkpoint_seconds: float, after_epoch: Callable[[Any], None] | None) -> None:
    study, key = stack.study, stack.key
    started = time.monotonic()
    trainer = make_trainer(stack.runs)
    state = store.load_checkpoint(study, key)
    if state is not None:
        trainer.load_state_dict(state)
    torchrun.barrier()  # all have read before one writes
    saved, pause = time.monotonic(), checkpoint_seconds
    while not trainer.done:
        trainer.train_epoch()
        if not torchrun.is_main_process():
            continue
        store.save_progress(study, key, trainer.epoch, trainer.live)
        now = time.monotonic()
        if now - saved >= pause:
            store.save_checkpoint(study, key, trainer.state_dict())
            saved = time.monotonic()
            pause = max(checkpoint_seconds, (saved - now) / CHECKPOINT_SHARE) if checkpoint_seconds else 0.0
        if after_epoch is not None:
            after_epoch(trainer)
    if not torchrun.is_main_process():
        return
    made = circumstances(stack, time.monotonic() - started, state is not None)
    found = zip(stack.runs, trainer.history, trainer.results(), trainer.pictures(), strict=True)
    for run, history, result, pictures in found:
        if store.result(run) is None:
            store.note(run, made)
            store.finish(run, history, result, pictures)
    store.drop_stack(study, key)


def circumstances(stack: RunBatch, seconds: float, resumed: bool) -> dict[str, Any]:
    """When and on what a stack was trained, and how long that took since it was last started."""
    device = stack.runs[0].device
    cuda = torch.device(device).type == "cuda"
    return {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "counterpoise": cp.__version__,
        "seconds": round(seconds, 1),
        "runs": len(stack.runs),
        "resumed": resumed,
    }


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """One thread for each stack: a sum that is shared by threads would round otherwise, and processes use the rest."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def available_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
