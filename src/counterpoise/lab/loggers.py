"""Loggers that write the histories of runs to TensorBoard or MLflow.

A run is logged when it is finished, completely or not at all, and is identified by its key. No point is therefore
logged twice, even if a run was interrupted, resumed or logged before.
"""

import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .._files import atomic_path
from .engine import Run, Store
from .engine.store import RESULT, digest
from .errors import LoggerError
from .studies import Cell

MARK = "logged"  # name of the file or tag that holds the digest of the logged result
TAG = "counterpoise.run"
MLFLOW_BATCH = 1000  # the most metrics per request


class RunLogger(Protocol):
    """Writes finished runs to a logging service."""

    def log(self, cell: Cell, store: Store) -> None:
        """Log a finished run, unless it has been logged."""


class RunLoggers:
    """All loggers of a command. A logger that fails is removed with a warning, and training continues."""

    def __init__(self, loggers: Iterable[RunLogger], cells: Iterable[Cell], store: Store) -> None:
        self.loggers, self.store = list(loggers), store
        # A run that belongs to several tables is logged under the first one.
        self.cells = {cell.run: cell for cell in reversed(list(cells))}

    def log(self, runs: Iterable[Run]) -> None:
        """Log those of the given runs that are finished."""
        for run in runs if self.loggers else ():
            if self.store.result(run) is None:
                continue
            for logger in list(self.loggers):
                try:
                    logger.log(self.cells[run], self.store)
                except Exception as error:  # a full disk, an unreachable server, or any other error of the service
                    name = type(logger).__name__
                    message = f"{name}: {error}. Logging stops; repeat the command to log the remaining runs"
                    warnings.warn(message, stacklevel=2)
                    self.loggers.remove(logger)

    def log_finished(self) -> None:
        """Log all runs that are already finished."""
        self.log(self.cells)


class TensorBoard:
    """Write the event files of each run to its own folder: folder/study/method/condition, seed and key."""

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
            raise LoggerError(f"cannot write event files to {folder}: {error.strerror}") from error

    def log(self, cell: Cell, store: Store) -> None:
        folder = self.folder.joinpath(*(part.replace("/", "-") for part in run_path(cell)))
        logged_digest = result_digest(cell.run, store)
        if (folder / MARK).exists() and (folder / MARK).read_text() == logged_digest:
            return
        with atomic_path(folder) as temporary:
            with self.writer(str(temporary)) as writer:
                writer.add_text("run", f"```\n{cell.run.canonical()}\n```")
                for epoch, values in scalars_by_epoch(cell.run, store):
                    # One event per epoch; add_scalar would write one per value.
                    scalars = [self.summary.Value(tag=name, simple_value=value) for name, value in values.items()]
                    writer.file_writer.add_summary(self.summary(value=scalars), epoch)
            (temporary / MARK).write_text(logged_digest)
            shutil.rmtree(folder, ignore_errors=True)


class MLflow:
    """Write each study as an MLflow experiment and each run as an MLflow run."""

    def __init__(self, uri: str) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
        except ModuleNotFoundError as missing:
            raise LoggerError(f"MLflow needs {missing.name}: pip install 'counterpoise[mlflow]'") from missing
        self.metric, self.param = Metric, Param
        self.logged: dict[str, dict[str, Any]] = {}  # experiment → key of a run → MLflow run
        try:
            self.client = MlflowClient(tracking_uri=uri)
            self.client.search_experiments(max_results=1)
        except MlflowException as error:
            raise LoggerError(f"cannot use MLflow at {uri}: {error}") from error

    def log(self, cell: Cell, store: Store) -> None:
        run, logged_digest = cell.run, result_digest(cell.run, store)
        experiment = self._experiment(run.study)
        logged = self.logged[experiment]
        if run.key in logged:
            old = logged[run.key]
            if old.info.status == "FINISHED" and old.data.tags.get(MARK) == logged_digest:
                return
            self.client.delete_run(old.info.run_id)  # another result, or an interrupted logger
        study, *rest = run_path(cell)
        tags = {TAG: run.key, MARK: logged_digest, "study": study, "mlflow.runName": ", ".join(rest)}
        created = self.client.create_run(experiment, tags=tags)
        self.client.log_batch(created.info.run_id, params=[self.param(*pair) for pair in run_parameters(cell)])
        timestamp = int((store.folder(run) / RESULT).stat().st_mtime * 1000)
        metrics = [
            self.metric(name, value, timestamp, epoch)
            for epoch, values in scalars_by_epoch(run, store)
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), MLFLOW_BATCH):
            self.client.log_batch(created.info.run_id, metrics=metrics[first : first + MLFLOW_BATCH])
        self.client.set_terminated(created.info.run_id)

    def _experiment(self, study: str) -> str:
        """Return the id of a study's experiment, which is created if necessary, and read its runs once."""
        name = f"counterpoise {study}"
        existing = self.client.get_experiment_by_name(name)
        experiment = str(existing.experiment_id if existing is not None else self.client.create_experiment(name))
        if experiment not in self.logged:
            runs: dict[str, Any] = {}
            token = None
            while True:
                page = self.client.search_runs([experiment], max_results=MLFLOW_BATCH, page_token=token)
                runs |= {run.data.tags[TAG]: run for run in page if TAG in run.data.tags}
                token = page.token
                if not token:
                    break
            self.logged[experiment] = runs
        return experiment


def run_path(cell: Cell) -> tuple[str, str, str]:
    """Return the study, the method, and a unique name made of condition, seed and key."""
    target = dict(cell.run.data.options).get("target")
    single_target = "" if target is None else f", target {target}"
    name = f"{cell.condition.key}{single_target}, seed {cell.run.seed} ({cell.run.key[:6]})"
    return cell.run.study, cell.method, name


def run_parameters(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield the configuration of a run as pairs of strings."""
    run = cell.run
    yield from (("method", cell.method), ("condition", cell.condition.key), ("seed", str(run.seed)))
    yield from (("lr", f"{run.network_lr:g}"), ("epochs", str(run.schedule.epochs)), ("device", run.device))
    yield from ((f"data.{name}", str(value)) for name, value in run.data.options)
    yield from ((f"method.{name}", str(value)) for name, value in run.recipe.options)


def result_digest(run: Run, store: Store) -> str:
    """Return the digest of a run's result, by which a repeated run is recognised."""
    return digest((store.folder(run) / RESULT).read_bytes())


def scalars_by_epoch(run: Run, store: Store) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each epoch with its values by name: loss/seg, weight/seg, theta/seg, z_over_tau/seg, macro, …"""
    result = store.result(run)
    tasks = list((result or {}).get("weights", {}))
    for row in store.history(run):
        yield int(row["epoch"]), dict(_flatten(row, tasks))


def _flatten(row: dict[str, Any], tasks: Sequence[str], group: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flatten(value, tasks, f"{name}/")
        elif isinstance(value, list) and len(value) == len(tasks):
            yield from ((f"{name}/{task}", float(v)) for task, v in zip(tasks, value, strict=True) if v is not None)
        elif isinstance(value, int | float) and name != "epoch":
            yield f"{group}{name}", float(value)
