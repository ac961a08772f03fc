"""Progress in the terminal: how many runs are done, how long the rest takes, and how the running ones score."""

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

from ..engine import Stack, Store


class Watch:
    """Follows stacks through what their workers write into the store, wherever they run."""

    def __init__(self, console: Console, store: Store, runs: int, stacks: Sequence[Stack]) -> None:
        self.store, self.console = store, console
        left = sum(len(stack.runs) for stack in stacks)
        console.print(f"{runs} runs, {runs - left} of them finished; {left} to do in {len(stacks)} stacks")
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        # The unit is work: a bar that counts stacks would jump.
        total = sum(stack.work for stack in stacks)
        self.total = self.progress.add_task("all runs", total=total, state="")
        self.ended_work, self.runs, self.left = 0, left, left
        self.bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def __call__(self, running: Sequence[Stack], ended: Sequence[Stack]) -> None:
        for stack in ended:
            self.ended_work += stack.work
            self.left -= len(stack.runs)
            if stack.key in self.bars:
                self.progress.remove_task(self.bars.pop(stack.key))
            if not self.console.is_terminal:
                self.console.print(f"done: {stack}")
        work = self.ended_work
        for stack in running:
            epoch, live = self.store.load_progress(stack.study, stack.key) or (0, 0.0)
            work += stack.work * epoch // stack.epochs
            if epoch:
                self._bar(stack, epoch, live)
        self.progress.update(self.total, completed=work, state=f"{self.runs - self.left}/{self.runs} runs")

    def _bar(self, stack: Stack, epoch: int, live: float) -> None:
        if stack.key not in self.bars:
            self.bars[stack.key] = self.progress.add_task(str(stack), total=stack.epochs, state="")
        state = f"epoch {epoch}/{stack.epochs}, {stack.runs[0].schedule.monitor} {live:.3f}"
        self.progress.update(self.bars[stack.key], completed=epoch, state=state)
