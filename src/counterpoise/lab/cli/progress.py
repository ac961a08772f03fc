"""Progress of the training in the terminal: finished runs, remaining time, and the scores of the running batches."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..engine import RunBatch, RunError, Store


class ProgressDisplay:
    """Progress bars of batches of runs, read from what their workers write into the store.

    Args:
        console: Where to print.
        store: The store of the runs.
        runs: Number of all runs, including finished ones.
        batches: Batches of the unfinished runs.
    """

    def __init__(self, console: Console, store: Store, runs: int, batches: Sequence[RunBatch]) -> None:
        self.store, self.console, self.batches = store, console, batches
        left = sum(len(batch.runs) for batch in batches)
        console.print(f"{runs} runs, {runs - left} of them finished; {left} to do in {len(batches)} batches")
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        # The unit of the bar is work, because a bar that counts batches would jump.
        total = sum(batch.work for batch in batches)
        self.total = self.progress.add_task("all runs", total=total, state="")
        self.ended_work, self.runs, self.left = 0, left, left
        self.bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        if isinstance(error, KeyboardInterrupt | RunError):
            runs = [run for batch in self.batches for run in batch.runs]
            finished = sum(self.store.result(run) is not None for run in runs)
            counts = f"{finished} of {len(runs)} runs were finished"
            self.console.print(f"\nstopped: {counts}. Run the same command again to resume.")

    def __call__(self, running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
        for batch in ended:
            self.ended_work += batch.work
            self.left -= len(batch.runs)
            if batch.key in self.bars:
                self.progress.remove_task(self.bars.pop(batch.key))
            failed = not all(self.store.has_result(run) for run in batch.runs)
            if failed or not self.console.is_terminal:
                self.console.print(f"{'failed' if failed else 'done'}: {batch}", markup=False)
        work = self.ended_work
        for batch in running:
            epoch, score = self.store.load_progress(batch.study, batch.key) or (0, 0.0)
            work += batch.work * epoch // batch.epochs
            if epoch:
                self._update_bar(batch, epoch, score)
        self.progress.update(self.total, completed=work, state=f"{self.runs - self.left}/{self.runs} runs")

    def _update_bar(self, batch: RunBatch, epoch: int, score: float) -> None:
        if batch.key not in self.bars:
            self.bars[batch.key] = self.progress.add_task(str(batch), total=batch.epochs, state="")
        state = f"epoch {epoch}/{batch.epochs}, {batch.runs[0].schedule.monitor} {score:.3f}"
        self.progress.update(self.bars[batch.key], completed=epoch, state=state)
