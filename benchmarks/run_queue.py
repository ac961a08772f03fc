"""Train the runs of studies that are not recorded yet, in a fixed order and within a limited time.

`pinn_stack.py queue` and `qm9_stack.py queue` use this on machines with a limit on the time of a command. What is
finished is brought back as one archive, and the checkpoint of the interrupted stack as a few files:

    python benchmarks/pinn_stack.py queue --seconds 540 --bring BACK
    python results/update.py merge BACK/runs.jsonl.xz
    python benchmarks/pinn_stack.py queue --seconds 540 --bring BACK --earlier BACK

With `--together 2`, two stacks are trained in turn, on CUDA each on its own stream, so that the small kernels of one
run beside the matrix products of the other. Several processes can also work on one folder of runs: a stack is locked
while it is trained, and the others take the next one.
"""

import argparse
import fcntl
import gc
import io
import json
import tarfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise.lab.engine import Recipe, Run, RunBatch, execute_in_steps
from counterpoise.lab.engine.archive import SUFFIX, ArchivedStore, pack
from counterpoise.lab.engine.balancer_groups import balancer_structure
from counterpoise.lab.engine.torch_settings import num_threads
from counterpoise.lab.files import write_atomic
from counterpoise.lab.studies import Cell, Study
from counterpoise.lab.studies.rates import LookUp, cells_at_chosen_rates

ARCHIVE, CHECKPOINT, FAILED = f"runs{SUFFIX}", "checkpoint", "failed.json"
PART_BYTES, MAX_PARTS = 15 * 2**20, 4
FLOAT_BYTES = 4
SPARE_SECONDS = 20.0  # for the last checkpoint and the archive
START_SECONDS = 40.0  # a stack is not started with less time left
CHECKPOINT_SECONDS = 60.0


class OutOfTimeError(Exception):
    """The time is used up. The stack has a checkpoint."""


@dataclass(frozen=True)
class Selection:
    """Runs of a study that are trained one stack after another. Methods of all spaces share a stack.

    Args:
        study: The study.
        cells: The cells to train. If the study chooses rates, the cells of one condition: those at the seeds of the
            choice come first, and the others run at the chosen rates.
        largest: Largest number of runs in a stack. Default: no limit.
    """

    study: Study
    cells: tuple[Cell, ...]
    largest: int | None = None

    def stacks(self, look_up: LookUp, left_out: Sequence[str] = ()) -> Iterator[RunBatch]:
        """Yield the stacks that are not finished.

        A stack keeps its runs, and with them its checkpoint, however many of the other stacks are finished.

        Args:
            look_up: Returns the result of a run.
            left_out: Methods that are not trained, as `method_name` names them.
        """
        cells = cells_at_chosen_rates(self.study, self.cells, look_up)
        runs = list(dict.fromkeys(cell.run for cell in cells))
        size = self.largest or max(len(runs), 1)
        for first in range(0, len(runs), size):
            by_method: dict[object, list[Run]] = {}
            for run in runs[first : first + size]:
                if look_up(run) is None and method_name(run.recipe) not in left_out:
                    by_method.setdefault(balancer_structure(run.recipe), []).append(run)
            if by_method:
                yield RunBatch(tuple(run for same_method in by_method.values() for run in same_method))


def method_name(recipe: Recipe) -> str:
    """Return a text that is equal for runs that share a balancer."""
    return repr(balancer_structure(recipe))


@dataclass(eq=False)
class Training:
    """A stack that is being trained. `stream` is the CUDA stream of its kernels; None for the default stream."""

    stack: RunBatch
    lock: ExitStack
    steps: Iterator[None]
    stream: torch.cuda.Stream | None

    def advance(self) -> None:
        """Train one step, or one epoch of a trainer that cannot pause."""
        context: AbstractContextManager[Any] = nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with context:
            next(self.steps)


@dataclass
class RunQueue:
    """Train stacks in order until the time is used up.

    Args:
        selections: What to train, the most important first.
        out: Folder of runs, checkpoints and copies of the recorded archives.
        seconds: The time, from the creation of the queue.
        bring: Folder of the files to bring back. Default: none are written.
        probe: Trains one run for a few steps. It raises an error if the method cannot be captured as a CUDA graph,
            which then would slow down its whole stack.
        together: Number of stacks that are trained in turn. Default: `1`.
        start_seconds: A stack is not started with less time left. Default: `START_SECONDS`.
        bring_checkpoints: Whether checkpoints are brought back, too. Default: `True`.
    """

    selections: Sequence[Selection]
    out: Path
    seconds: float
    bring: Path | None = None
    probe: Callable[[Run], None] | None = None
    started: float = field(default_factory=time.monotonic)
    together: int = 1
    start_seconds: float = START_SECONDS
    bring_checkpoints: bool = True

    def __post_init__(self) -> None:
        self.store = ArchivedStore(self.out)
        self.shared_seconds = 0.0  # the time of the device, divided among the stacks that are trained in turn
        self.interrupted = False

    @property
    def remaining(self) -> float:
        """The seconds that are left for training."""
        return self.started + self.seconds - SPARE_SECONDS - time.monotonic()

    def work(self) -> bool:
        """Train stacks, and return whether none has failed.

        A stack that fails is not tried again: the caller should start a new process, because the device may be
        unusable after an error.
        """
        active: list[Training] = []
        self._start_stacks(active)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="could not capture")
            while active:
                before, count = time.monotonic(), len(active)
                for training in tuple(active):
                    running, failed = self._advance(training)
                    if not running:
                        active.remove(training)
                        training.lock.close()
                        training.steps = iter(())
                        gc.collect()  # trainers and their CUDA graphs refer to each other
                        self.bring_back()
                        self._start_stacks(active)
                    if failed:
                        return False
                self.shared_seconds += (time.monotonic() - before) / count
        self.bring_back()
        left = next(self.unfinished(), None)
        print("nothing is left" if left is None else f"next: {left}", flush=True)
        return True

    def unfinished(self) -> Iterator[RunBatch]:
        """Yield the stacks that are not finished, can be trained now, and have not failed."""
        failed = self._failed()
        for selection in self.selections:
            for stack in selection.stacks(self.store.result, failed["methods"]):
                if stack.key not in failed["stacks"]:
                    yield stack

    def _start_stacks(self, active: list[Training]) -> None:
        """Start as many stacks as are trained in turn, while there is time."""
        busy = {run for training in active for run in training.stack.runs}
        while len(active) < self.together and not self.interrupted and self.remaining > self.start_seconds:
            found = next(self._locked(stack for stack in self.unfinished() if busy.isdisjoint(stack.runs)), None)
            if found is None:
                return
            stack, lock = found
            print(f"{stack}, {self.remaining:.0f} s left", flush=True)
            on_stream = self.together > 1 and torch.device(stack.runs[0].device).type == "cuda"
            # Streams of high priority are not those of the branches of a step.
            stream = torch.cuda.Stream(stack.runs[0].device, priority=-1) if on_stream else None
            active.append(Training(stack, lock, self._train(stack), stream))
            busy |= set(stack.runs)

    def _locked(self, stacks: Iterable[RunBatch]) -> Iterator[tuple[RunBatch, ExitStack]]:
        """Yield the stacks that no other process trains or has finished, with their locks."""
        for stack in stacks:
            lock = ExitStack()
            try:
                lock.enter_context(locked(self.out, stack.key, wait=False))
            except BlockingIOError:
                continue
            if any(self.store.result(run) is None for run in stack.runs):
                yield stack, lock
            else:
                lock.close()

    def _advance(self, training: Training) -> tuple[bool, bool]:
        """Train a stack for one step. Return whether it goes on, and whether it has failed."""
        try:
            on_cpu = training.stack.runs[0].device == "cpu"
            with num_threads(1 if on_cpu else torch.get_num_threads()):
                training.advance()
        except StopIteration:
            return False, False
        except OutOfTimeError:
            self.interrupted = True
            print("  interrupted: the time is used up", flush=True)
            return False, False
        except Exception as error:
            traceback.print_exc()
            if self._leave_out(training.stack, error):
                return False, False
            self._remember("stacks", [training.stack.key])
            return False, True
        return True, False

    def _train(self, stack: RunBatch) -> Iterator[None]:
        epoch_started = time.monotonic()

        def after_epoch(trainer: Any) -> None:
            nonlocal epoch_started
            now = time.monotonic()
            duration, epoch_started = now - epoch_started, now
            if trainer.epoch in (1, 2) or trainer.epoch % 10 == 0:
                value = f"{trainer.latest_value:.4g}"
                print(f"  {stack.study}, epoch {trainer.epoch}: {duration:.2f} s, mean value {value}", flush=True)
            if not trainer.done and self.remaining < duration:
                self.store.save_checkpoint(stack.study, stack.key, trainer.state_dict())
                raise OutOfTimeError

        yield from execute_in_steps(
            stack,
            self.out,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            after_epoch=after_epoch,
            clock=lambda: self.shared_seconds,
        )

    def _leave_out(self, stack: RunBatch, error: Exception) -> bool:
        """Leave out the methods that cannot be captured as a CUDA graph. Return whether there are such methods."""
        if self.probe is None or not isinstance(error, UserWarning):
            return False
        failing = []
        for name, run in {method_name(run.recipe): run for run in stack.runs}.items():
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", message="could not capture")
                    self.probe(run)
            except Exception as found:
                print(f"  left out: {run.recipe.name} ({found})"[:300], flush=True)
                failing.append(name)
        self._remember("methods", failing)
        return bool(failing)

    def _failed(self) -> dict[str, list[str]]:
        path = self.out / FAILED
        found: dict[str, list[str]] = json.loads(path.read_text()) if path.is_file() else {}
        return {"methods": [], "stacks": []} | found

    def _remember(self, kind: str, names: Sequence[str]) -> None:
        failed = self._failed()
        failed[kind] += names
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / FAILED).write_text(json.dumps(failed))

    def bring_back(self) -> None:
        """Write the archive of the finished runs and the checkpoints of unfinished stacks to the folder `bring`."""
        if self.bring is None:
            return
        self.bring.mkdir(parents=True, exist_ok=True)
        with locked(self.out, ARCHIVE):
            if any(self.out.glob("*/*/result.json")):
                print(f"  {pack(self.out, self.bring / ARCHIVE)} runs packed", flush=True)
        for old in self.bring.glob(f"{CHECKPOINT}.*"):
            old.unlink()
        stacks = [stack for stack in self.unfinished() if self.store.has_checkpoint(stack.study, stack.key)]
        if stacks and self.bring_checkpoints:
            save_parts([self.store.batch_folder(stack.study, stack.key) for stack in stacks], self.bring)


@contextmanager
def locked(folder: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock in a folder, which is released at the latest when the process ends.

    Raises:
        BlockingIOError: If another process holds it and `wait` is false.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def save_parts(folders: Sequence[Path], bring: Path) -> None:
    """Write folders of checkpoints as a few files of limited size. The last ones are left out if all are too large.

    Raises:
        ValueError: If the first checkpoint is too large.
    """
    limit = MAX_PARTS * PART_BYTES
    while len(content := _compressed(folders)) > limit:
        found = f"expected checkpoints of at most {limit} bytes, got {len(content)}"
        if len(folders) == 1:
            raise ValueError(f"{found}: use smaller stacks")
        print(f"  {found}: {folders[-1].name} is left out", flush=True)
        folders = folders[:-1]
    for number, first in enumerate(range(0, len(content), PART_BYTES)):
        (bring / f"{CHECKPOINT}.{number:02}").write_bytes(content[first : first + PART_BYTES])


def _compressed(folders: Sequence[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in folders:
            tar.add(folder, f"{folder.parent.name}/{folder.name}")
    return compress(buffer.getvalue())


def compress(content: bytes) -> bytes:
    """Compress a file of float32 numbers, with the first bytes of all numbers together, then the second, and so on.

    The last bytes are sign and exponent, which take most of the space that can be saved.
    """
    padded = content + bytes(-len(content) % FLOAT_BYTES)  # a tar file may end in zeros
    return zlib.compress(np.frombuffer(padded, np.uint8).reshape(-1, FLOAT_BYTES).T.tobytes(), 1)


def decompress(content: bytes) -> bytes:
    """Return what `compress` was given."""
    return np.frombuffer(zlib.decompress(content), np.uint8).reshape(FLOAT_BYTES, -1).T.tobytes()


def prepare(out: Path, recorded: Sequence[Path], earlier: Sequence[Path]) -> None:
    """Copy recorded archives, and the files that an earlier call brought back, to the folder of runs.

    Args:
        out: The folder of runs. Checkpoints that are already there are kept.
        recorded: Folders of archives.
        earlier: Folders that hold the files of an earlier call.
    """
    out.mkdir(parents=True, exist_ok=True)
    for folder in (*recorded, *earlier):
        for archive in sorted(folder.glob(f"*{SUFFIX}")):
            name = "-".join([*folder.parts[-2:], archive.name]).replace("/", "")
            write_atomic(out / name, archive.read_bytes())  # other processes may read it
    parts = sorted((part for folder in earlier for part in folder.glob(f"{CHECKPOINT}.*")), key=lambda part: part.name)
    if not parts:
        return
    content = decompress(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = [member for member in tar if not (out / member.name).is_file()]
        tar.extractall(out, members, filter="data")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `queue`."""
    parser.add_argument("--bring", type=Path, help="folder of the files to bring back")
    parser.add_argument("--earlier", type=Path, action="append", help="folder with files that an earlier call brought")
    parser.add_argument("--recorded", type=Path, action="append", help="folder of recorded archives")
    parser.add_argument("--together", type=int, default=1, help="number of stacks that are trained in turn")
    parser.add_argument("--start-seconds", type=float, default=START_SECONDS, help="least time left to start a stack")
    parser.add_argument("--list", action="store_true", help="print the number of runs that are left, and stop")


def run_queue(
    selections: Sequence[Selection],
    options: argparse.Namespace,
    *,
    recorded: Sequence[Path] = (),
    probe: Callable[[Run], None] | None = None,
    bring_checkpoints: bool = True,
) -> int:
    """Run the command `queue`, and return its exit code.

    Args:
        selections: What to train, the most important first.
        options: The options of the command, with `out` and `seconds`.
        recorded: Folders of recorded archives, unless the options name others. Default: all runs are trained.
        probe: See `RunQueue`.
        bring_checkpoints: See `RunQueue`.
    """
    started, out = time.monotonic(), Path(options.out)
    prepare(out, options.recorded or recorded, options.earlier or ())
    queue = RunQueue(
        selections, out, options.seconds or 1e9, options.bring, probe, started, options.together,
        options.start_seconds, bring_checkpoints,
    )  # fmt: skip
    if options.list:
        for selection in selections:
            print_left(selection, queue.store.result)
        return 0
    return 0 if queue.work() else 1


def print_left(selection: Selection, look_up: LookUp) -> None:
    """Print the stacks of a selection that can be trained now, and the number of its cells."""
    condition = selection.cells[0].condition.key
    sizes = [len(stack.runs) for stack in selection.stacks(look_up)]
    methods = len({cell.method for cell in selection.cells})
    print(f"{selection.study.name}, {condition}, {methods} methods: {sizes or 'finished'}")
