"""Runs on a board: what histories hold, epoch by epoch, for TensorBoard or MLflow.

A run is logged once it is finished, whole or not at all, under its own key: whatever was stopped, resumed or logged
before, no point appears twice, and runs that were trained in one stack stand apart.
"""

import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .engine import Run, Store
from .engine.store import RESULT, digest
from .studies import Cell

MARK = "logged"  # beside a run's events: the digest of the result that they are of
TAG = "counterpoise.run"
BATCH = 1000  # metrics that MLflow takes at once


class LoggerError(RuntimeError):
    """A board that cannot be used, and why."""


class RunLogger(Protocol):
    def log(self, cell: Cell, store: Store) -> None:
        """Puts a finished run on the board, unless it is there."""


class RunLoggers:
    """All boards of a command. One that fails is named and left out from there on: training is worth more."""

    def __init__(self, boards: Iterable[RunLogger], cells: Iterable[Cell], store: Store) -> None:
        self.boards, self.store = list(boards), store
        self.cells = {
            cell.run: cell for cell in reversed(list(cells))
        }  # a run in several tables: where it stands first

    def log(self, runs: Iterable[Run]) -> None:
        for run in runs if self.boards else ():
            if self.store.result(run) is None:
                continue
            for board in list(self.boards):
                try:
                    board.log(self.cells[run], self.store)
                except Exception as error:  # a full disk, a server that does not answer: whatever the board may say
                    name = type(board).__name__
                    warnings.warn(f"{name}: {error}. Nothing more is logged; the same command will", stacklevel=2)
                    self.boards.remove(board)

    def finished(self) -> None:
        """Logs what was finished before."""
        self.log(self.cells)


class TensorBoard:
    """Event files in a folder for each run: folder/study/method/condition, seed and key."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.summary_pb2 import Summary
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as missing:
            raise LoggerError(f"TensorBoard needs {missing.name}: pip install 'counterpoise[tensorboard]'") from missing
        self.writer, self.summary, self.folder = SummaryWriter, Summary, folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LoggerError(f"{folder} cannot hold event files: {error.strerror}") from error

    def log(self, cell: Cell, store: Store) -> None:
        home = self.folder.joinpath(*(part.replace("/", "-") for part in place(cell)))
        of = result_digest(cell.run, store)
        if (home / MARK).exists() and (home / MARK).read_text() == of:
            return
        draft = home.with_name(f".{home.name}.{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        with self.writer(str(draft)) as writer:
            writer.add_text("run", f"```\n{cell.run.canonical()}\n```")
            for epoch, values in points(cell.run, store):  # one event for each epoch: add_scalar would write one each
                scalars = [self.summary.Value(tag=name, simple_value=value) for name, value in values.items()]
                writer.file_writer.add_summary(self.summary(value=scalars), epoch)
        (draft / MARK).write_text(of)
        shutil.rmtree(home, ignore_errors=True)
        os.replace(draft, home)


class MLflow:
    """An experiment for each study and an MLflow run for each run, through MLflow's own client."""

    def __init__(self, uri: str) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
        except ModuleNotFoundError as missing:
            raise LoggerError(f"MLflow needs {missing.name}: pip install 'counterpoise[mlflow]'") from missing
        self.metric, self.param = Metric, Param
        self.known: dict[str, dict[str, Any]] = {}
        try:
            self.client = MlflowClient(tracking_uri=uri)
            self.client.search_experiments(max_results=1)
        except MlflowException as error:
            raise LoggerError(f"MLflow cannot use {uri}: {error}") from error

    def log(self, cell: Cell, store: Store) -> None:
        run, of = cell.run, result_digest(cell.run, store)
        experiment = self._experiment(run.study)
        there = self.known[experiment]
        if run.key in there:
            old = there[run.key]
            if old.info.status == "FINISHED" and old.data.tags.get(MARK) == of:
                return
            self.client.delete_run(old.info.run_id)  # of another result, or of a logger that was killed
        study, *rest = place(cell)
        tags = {TAG: run.key, MARK: of, "study": study, "mlflow.runName": ", ".join(rest)}
        made = self.client.create_run(experiment, tags=tags)
        self.client.log_batch(made.info.run_id, params=[self.param(*pair) for pair in parameters(cell)])
        moment = int((store.folder(run) / RESULT).stat().st_mtime * 1000)
        every = [
            self.metric(name, value, moment, epoch)
            for epoch, values in points(run, store)
            for name, value in values.items()
        ]
        for first in range(0, len(every), BATCH):
            self.client.log_batch(made.info.run_id, metrics=every[first : first + BATCH])
        self.client.set_terminated(made.info.run_id)

    def _experiment(self, study: str) -> str:
        """The experiment of a study; what it holds is read once."""
        name = f"counterpoise {study}"
        found = self.client.get_experiment_by_name(name)
        experiment = str(found.experiment_id if found is not None else self.client.create_experiment(name))
        if experiment not in self.known:
            runs: dict[str, Any] = {}
            token = None
            while True:
                page = self.client.search_runs([experiment], max_results=BATCH, page_token=token)
                runs |= {run.data.tags[TAG]: run for run in page if TAG in run.data.tags}
                token = page.token
                if not token:
                    break
            self.known[experiment] = runs
        return experiment


def place(cell: Cell) -> tuple[str, str, str]:
    """Where a run stands: its study, its method, and the rest, which nothing else shares."""
    target = dict(cell.run.data.options).get("target")
    alone = "" if target is None else f", target {target}"
    return cell.run.study, cell.method, f"{cell.condition.key}{alone}, seed {cell.run.seed} ({cell.run.key[:6]})"


def parameters(cell: Cell) -> Iterator[tuple[str, str]]:
    """A run's description in MLflow's flat form."""
    run = cell.run
    yield from (("method", cell.method), ("condition", cell.condition.key), ("seed", str(run.seed)))
    yield from (("lr", f"{run.network_lr:g}"), ("epochs", str(run.schedule.epochs)), ("device", run.device))
    yield from ((f"data.{name}", str(value)) for name, value in run.data.options)
    yield from ((f"method.{name}", str(value)) for name, value in run.recipe.options)


def result_digest(run: Run, store: Store) -> str:
    return digest((store.folder(run) / RESULT).read_bytes())


def points(run: Run, store: Store) -> Iterator[tuple[int, dict[str, float]]]:
    """For each recorded epoch every number by name: loss/seg, weight/seg, theta/seg, z_over_tau/seg, macro, …"""
    result = store.result(run)
    tasks = list((result or {}).get("weights", {}))
    for row in store.history(run):
        yield int(row["epoch"]), dict(_named(row, tasks))


def _named(row: dict[str, Any], tasks: Sequence[str], group: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _named(value, tasks, f"{name}/")
        elif isinstance(value, list) and len(value) == len(tasks):
            yield from ((f"{name}/{task}", float(v)) for task, v in zip(tasks, value, strict=True) if v is not None)
        elif isinstance(value, int | float) and name != "epoch":
            yield f"{group}{name}", float(value)
