"""Train runs in batches: what `reproduce` and `compare` share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ..engine import ExecutorName, Run, RunBatch, RunError, Store, make_executor, plan, run_batches
from ..errors import UsageError
from ..studies import Cell, Study
from ..studies.rates import LookUp, cells_at_chosen_rates, cells_of_choice

ProgressCallback = Callable[[Sequence[RunBatch], Sequence[RunBatch]], None]
"""Called with the running batches and those that have just ended."""

ProgressFactory = Callable[[Store, int, Sequence[RunBatch]], AbstractContextManager[ProgressCallback]]
"""Called with the store, the number of all runs, and the batches of unfinished runs."""


def check_executor(executor: ExecutorName, address: str | None, jobs: int | None) -> None:
    """Check the options of an executor.

    Raises:
        UsageError: If an option does not fit the executor, or if Ray is not installed.
    """
    if address is not None and executor != "ray":
        raise UsageError(f"--address is for --executor ray, not for {executor}")
    if jobs is not None and executor != "processes":
        raise UsageError(f"--jobs is for --executor processes, not for {executor}")
    if executor == "ray" and importlib.util.find_spec("ray") is None:
        raise UsageError("--executor ray needs Ray: pip install 'counterpoise[ray]'")


def training_stages(studies: Sequence[Study], cells: Sequence[Cell], look_up: LookUp) -> Iterator[list[Run]]:
    """Yield the runs to train first, and then those that depend on their results: other seeds at the best rates."""
    by_study = {study.name: [cell for cell in cells if cell.run.study == study.name] for study in studies}
    first = [cell.run for study in studies for cell in cells_of_choice(study, by_study[study.name])]
    yield list(dict.fromkeys(first))  # several tables can share a run
    if any(study.rate_seeds for study in studies):
        later = [cell.run for s in studies for cell in cells_at_chosen_rates(s, by_study[s.name], look_up)]
        yield list(dict.fromkeys(later))


def train_runs(
    runs: list[Run],
    out: Path,
    *,
    on_finished: Callable[[Iterable[Run]], None],
    on_failure: Callable[[RunBatch, RunError], None] | None = None,
    progress: ProgressFactory | None,
    executor: ExecutorName,
    jobs: int | None,
    address: str | None,
    device: str,
) -> None:
    """Train the unfinished runs in batches.

    Args:
        runs: The runs.
        out: Folder of runs.
        on_finished: Called with the runs of the batches that have just ended.
        on_failure: Called with a batch that failed, and its error; the others continue. Default: it stops all.
        progress: Makes the context manager that follows the training.
        executor: Where runs are trained.
        jobs: Number of local processes.
        address: Address of a Ray cluster.
        device: Device of the runs.
    """
    store = Store(out)
    batches = plan(runs, store)
    follow = progress(store, len(runs), batches) if progress else nullcontext(lambda running, ended: None)
    with follow as callback, make_executor(executor, jobs=jobs, address=address, device=device) as workers:
        from .. import report  # noqa: F401  imported while the workers start, because it takes long

        def on_progress(running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
            callback(running, ended)
            on_finished(run for batch in ended for run in batch.runs)

        run_batches(batches, out, workers, on_progress, on_failure)
    for study in {run.study for run in runs}:
        store.delete_finished_batches(study)
