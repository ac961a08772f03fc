"""Batches of runs: which runs are trained together, and how a batch is trained and resumed."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

import counterpoise as cp

from . import torchrun
from .balancer_groups import balancer_structure, compares_gradients
from .config import Run, content_hash
from .function_trainer import describe_run
from .methods import describe
from .pinn import PinnTrainer
from .pinn_workload import PinnWorkload
from .qm9_workload import QM9Workload
from .store import Store
from .torch_settings import num_threads
from .trainers import is_function, is_molecular, is_pinn, is_profiled, make_trainer, runs_alone
from .workload import Workload
from .workloads import WORKLOADS

MAX_RUNS = {("loss", "cpu"): 30, ("gradient", "cpu"): 10, ("loss", "cuda"): 4096, ("gradient", "cuda"): 4096}
"""Runs per batch. On a CPU larger batches are hardly faster, and smaller ones keep all processes busy."""

CHECKPOINT_SECONDS = 5.0
CHECKPOINT_SHARE = 0.05  # the largest share of the time spent on checkpoints, which may take long to write


@dataclass(frozen=True)
class RunBatch:
    """Runs that are trained together as replicas of one program, and resumed together."""

    runs: tuple[Run, ...]

    @property
    def study(self) -> str:
        return self.runs[0].study

    @property
    def epochs(self) -> int:
        return self.runs[0].schedule.epochs

    @cached_property
    def key(self) -> str:
        """The hash of the runs, which names the folder of the checkpoint."""
        return content_hash("\n".join(run.key for run in self.runs))

    @property
    def work(self) -> int:
        """The approximate number of backward passes, by which batches are sorted."""
        passes = 10 if _space(self.runs[0]) == "gradient" else 1
        costs = (1 if runs_alone(run) else _workload(run).relative_cost(run) for run in self.runs)
        return sum(costs) * self.epochs * passes

    def __str__(self) -> str:
        if is_function(self.runs[0]):  # such runs are trained alone
            return f"{self.study}: {describe_run(self.runs[0])}"
        names = sorted({run.recipe.name for run in self.runs})
        problem = self.runs[0].data.name
        where = "" if problem == self.study else f" on {problem}"
        return f"{self.study}: {', '.join(names)}{where} ({len(self.runs)} run{'s' if len(self.runs) > 1 else ''})"


def _space(run: Run) -> Literal["loss", "gradient"]:
    return "gradient" if compares_gradients(run.recipe) else "loss"


def _workload(run: Run) -> type[Workload] | type[PinnWorkload] | type[QM9Workload]:
    if is_molecular(run):
        return QM9Workload
    return PinnWorkload if is_pinn(run) else WORKLOADS[run.data.name]


def batch_key(run: Run) -> tuple[object, ...]:
    """Return a key that is equal for runs that can be trained together.

    Learning rates, decays and clips may differ. Each gradient-space method has its own batches, because it combines the
    gradients of a whole batch. On differential equations and molecules these methods can be mixed; on a GPU they are
    kept apart from the others, because some of their solvers take longer than a step of the network. These runs are
    trained alone: runs in fp16, where the overflow of one replica would skip the step of all, runs of dense prediction,
    and those of a user's function. Profiled runs of one seed take turns in one process.
    """
    if is_profiled(run):
        return run.study, run.data, run.model, run.schedule, run.device, run.seed
    if runs_alone(run):
        return (run.key,)
    method: tuple[object, ...] | str | None = None
    if is_pinn(run) or is_molecular(run):
        method = None if run.device == "cpu" else describe(run.recipe.name).space
    elif _space(run) == "gradient":
        method = balancer_structure(run.recipe)
    schedule = replace(run.schedule, lr=0.0, weight_decay=0.0, clip=None)
    if schedule.decay == "cosine":  # the final factor lr_end / lr is equal only for equal lr
        schedule = replace(schedule, lr=run.network_lr)
    alone = run.key if run.schedule.precision == "fp16" and not is_molecular(run) else None
    return run.study, _workload(run).shape_key(run), run.model, schedule, run.device, method, alone


def make_run_batches(runs: Iterable[Run], largest: int | None = None) -> list[RunBatch]:
    """Group runs into batches of nearly equal size, with the runs of a method side by side.

    Args:
        runs: the runs to group.
        largest: the largest size of a batch; by default it depends on the method, the problem and the device.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(batch_key(run), []).append(run)
    batches = []
    for group in groups.values():
        by_method: dict[tuple[object, ...], list[Run]] = {}
        for run in group:
            by_method.setdefault(balancer_structure(run.recipe), []).append(run)
        ordered = [run for same_method in by_method.values() for run in same_method]
        limit = largest or _default_limit(ordered[0])
        count = -(-len(ordered) // limit)
        cuts = [round(i * len(ordered) / count) for i in range(count + 1)]
        batches += [RunBatch(tuple(ordered[a:b])) for a, b in pairwise(cuts)]
    return batches


def _default_limit(run: Run) -> int:
    device = run.device.split(":")[0]
    own = _workload(run).max_replicas(run) if device == "cpu" and not runs_alone(run) else None
    return own or MAX_RUNS[_space(run), device]


def plan(runs: Sequence[Run], store: Store, largest: int | None = None) -> list[RunBatch]:
    """Return the batches that remain to be run.

    A batch with a checkpoint is returned whole, because it can only be resumed as a whole. Other batches are reduced to
    their unfinished runs.
    """
    remaining = []
    for batch in make_run_batches(dict.fromkeys(runs), largest):  # a run that belongs to two tables is run once
        unfinished = tuple(run for run in batch.runs if store.result(run, clear=True) is None)
        if unfinished:
            remaining.append(batch if store.has_checkpoint(batch.study, batch.key) else RunBatch(unfinished))
    return remaining


def execute(
    batch: RunBatch,
    root: Path | str,
    *,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    after_epoch: Callable[[Any], None] | None = None,
) -> None:
    """Train a batch of runs to the end, from its checkpoint if there is one, and write the result of each run.

    In a process group, all ranks train the batch together and rank 0 writes.

    Args:
        batch: the runs to train.
        root: the output folder.
        checkpoint_seconds: the least time between two checkpoints.
        after_epoch: called with the trainer after each epoch.
    """
    # On a CPU, one thread makes sums reproducible; several processes use the other cores.
    with num_threads(1 if batch.runs[0].device == "cpu" else torch.get_num_threads()):
        for _ in execute_in_steps(batch, root, checkpoint_seconds=checkpoint_seconds, after_epoch=after_epoch):
            pass


def execute_in_steps(
    batch: RunBatch,
    root: Path | str,
    *,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    after_epoch: Callable[[Any], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Train as `execute` does, and yield after each training step or epoch, so that batches can be trained in turn.

    Args:
        batch: the runs to train.
        root: the output folder.
        checkpoint_seconds: the least time between two checkpoints.
        after_epoch: called with the trainer after each epoch.
        clock: returns the time that is recorded with the results.
    """
    store, study, key = Store(root), batch.study, batch.key
    started = clock()
    trainer = make_trainer(batch.runs)
    state = store.load_checkpoint(study, key)
    if state is not None:
        trainer.load_state_dict(state)
    torchrun.barrier()  # all ranks must have read the checkpoint before rank 0 overwrites it
    if torchrun.is_main_process():
        store.start_batch(study, key, batch.runs)
    saved, pause = time.monotonic(), checkpoint_seconds
    while not trainer.done:
        if isinstance(trainer, PinnTrainer):
            yield from trainer.epoch_in_steps()
        else:
            trainer.train_epoch()
            yield
        if not torchrun.is_main_process():
            continue
        store.save_progress(study, key, trainer.epoch, trainer.latest_value)
        now = time.monotonic()
        if now - saved >= pause:
            store.save_checkpoint(study, key, trainer.state_dict())
            saved = time.monotonic()
            pause = max(checkpoint_seconds, (saved - now) / CHECKPOINT_SHARE) if checkpoint_seconds else 0.0
        if after_epoch is not None:
            after_epoch(trainer)
    if not torchrun.is_main_process():
        return
    circumstances = _circumstances(batch, clock() - started, resumed=state is not None)
    results = zip(batch.runs, trainer.history, trainer.results(), trainer.pictures(), strict=True)
    for run, history, result, pictures in results:
        if store.result(run) is None:
            store.write_circumstances(run, circumstances)
            store.finish(run, history, result, pictures)
    store.delete_checkpoint(study, key)


def _circumstances(batch: RunBatch, seconds: float, *, resumed: bool) -> dict[str, Any]:
    """Return when and on what machine a batch was trained, and the time since its last start."""
    device = batch.runs[0].device
    cuda = torch.device(device).type == "cuda"
    return {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "counterpoise": cp.__version__,
        "seconds": round(seconds, 1),
        "runs": len(batch.runs),
        "resumed": resumed,
    }


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
