"""Train the runs of some studies and write their report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.dense import DENSE
from ..data.locations import SOURCES, VARIABLE, data_folder, is_present
from ..engine import ExecutorName, Run, Store
from ..engine.torchrun import started_by_torchrun
from ..errors import ReportError, UsageError, describe_os_error
from ..files import write_atomic
from ..loggers import MLflow, RunLogger, RunLoggers, TensorBoard
from ..studies import PAPER_STUDIES, SATURATION, saturation_studies
from ..studies.select import SCENES, report_seeds, resolve_study, select_runs
from ._checks import check_available, make_writable
from ._training import ProgressFactory, check_executor, train_runs, training_stages

if TYPE_CHECKING:  # pandas takes long to import
    from ..report import Report


@dataclass(frozen=True)
class Reproduction:
    """The report of the studies and its files. Processes of torchrun other than the first have neither."""

    report: Report | None = None
    files: list[Path] = field(default_factory=list)


def reproduce(
    studies: Iterable[str] | None = None,
    *,
    seeds: str | Iterable[int] | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    executor: ExecutorName = "processes",
    jobs: int | None = None,
    address: str | None = None,
    out: Path | str = "runs",
    methods: Iterable[str] | None = None,
    conditions: Iterable[str] | None = None,
    data: str | None = None,
    quick: bool = False,
    tensorboard: Path | None = None,
    mlflow: str | None = None,
    progress: ProgressFactory | None = None,
    on_report: Callable[[Report], None] | None = None,
) -> Reproduction:
    """Train the runs of some studies that are not finished yet, and write tables, claims and figures.

    Args:
        studies: Names of studies; "saturation" means BPGS in the studies of that table. Default: the paper's four
            synthetic studies.
        seeds: Seeds as a list, or as text such as "42-51" or "paper". Default: all seeds of each study.
        epochs: Number of epochs. Default: each study's.
        device: cpu, cuda or cuda:N.
        executor: Where runs are trained: in this process, in local processes, or on a Ray cluster.
        jobs: Number of local processes. Default: one per CPU.
        address: Address of a Ray cluster, or "auto".
        out: Folder of runs; the report is written to its subfolder `report`.
        methods: Labels of methods. Default: all.
        conditions: Keys of conditions. Default: all except those that are opt-in.
        data: The data folder, or "scenes" for synthetic rooms instead of NYUv2. Default: the environment variable
            COUNTERPOISE_DATA.
        quick: Whether to run the quick form of each study.
        tensorboard: Folder of TensorBoard event files.
        mlflow: Tracking URI of MLflow.
        progress: Makes the context manager that follows the training.
        on_report: Called with the report before its files are written.

    Returns:
        The report and its files.

    Raises:
        UsageError: If an argument is invalid or data are missing. Nothing has been trained then.
        LoggerError: If TensorBoard or MLflow cannot be used.
        RunError: If a run fails. Finished runs are kept.
        ReportError: If the report cannot be written. All runs are finished then.
    """
    names = list(studies or ())
    if names == [SATURATION]:
        names, methods = [study.name for study in saturation_studies()], methods or ["BPGS"]
    names = list(dict.fromkeys(names or [study.name for study in PAPER_STUDIES]))
    seeds = seeds if seeds is None or isinstance(seeds, str) else list(seeds)
    methods, conditions = (None if given is None else list(given) for given in (methods, conditions))
    chosen = [resolve_study(name, data=data, quick=quick) for name in names]
    check_available(device)
    check_executor(executor, address, jobs)
    selection: dict[str, Any] = {"seeds": seeds, "epochs": epochs, "methods": methods, "conditions": conditions}
    cells = [cell for study in chosen for cell in select_runs(study, device=device, **selection)]
    runs = list(dict.fromkeys(cell.run for cell in cells))
    _check_data(runs, data)
    if started_by_torchrun() and any(run.data.name not in DENSE for run in runs):
        raise UsageError("torchrun is for the studies of NYUv2: the others already train many runs in one process")
    out, store = Path(out), Store(out)
    loggers = RunLoggers(_loggers(tensorboard, mlflow), cells, store)
    make_writable(out)
    make_writable(out / "report")
    options: dict[str, Any] = {"executor": executor, "jobs": jobs, "address": address, "device": device}
    loggers.log_finished()
    for stage in training_stages(chosen, cells, store.result):
        train_runs(stage, out, on_finished=loggers.log, progress=progress, **options)
    if started_by_torchrun() and os.environ["RANK"] != "0":
        return Reproduction()
    from ..report import Report

    report = Report(chosen, store, seeds=report_seeds(seeds, chosen[0]), epochs=epochs, device=device)
    if on_report is not None:
        on_report(report)
    given: dict[str, Any] = {"--seeds": _as_text(seeds), "--epochs": epochs, "--device": device}
    given |= {"--method": methods, "--condition": conditions} | ({"--data": SCENES} if data == SCENES else {})
    return Reproduction(report, _write_report(report, out, names, given, quick))


def _write_report(report: Report, out: Path, names: list[str], options: dict[str, Any], quick: bool) -> list[Path]:
    from ..report import machine_table, provenance

    path = out / "report" / "made.md"
    try:
        files = [*report.write(out / "report"), path]
        text = f"{provenance(names, options, quick)}\n{machine_table(out, names)}"
        # Circumstances may contain unpaired surrogates.
        write_atomic(path, text.encode(errors="replace"), to_pipes=False)
    except OSError as error:
        raise ReportError(
            f"{describe_os_error(error)}. All runs are finished and kept in {out}: the same command writes the report"
        ) from error
    return files


def _as_text(seeds: str | Iterable[int] | None) -> str | None:
    return seeds if seeds is None or isinstance(seeds, str) else ",".join(map(str, seeds))


def _check_data(runs: list[Run], data: str | None) -> None:
    """Check that the data of all runs are present. Workers read the data folder from their environment."""
    if data not in (None, SCENES):
        os.environ[VARIABLE] = str(Path(data).resolve())
    folder = data_folder()
    needed = {run.data.name for run in runs}
    missing = [source for source in SOURCES if source.name in needed and not is_present(source, folder)]
    if missing:
        hints = "; ".join(f"{source.name}: {source.instructions}" for source in missing)
        place = folder or f"not set: use --data or the environment variable {VARIABLE}"
        raise UsageError(f"data are missing in the data folder ({place}). {hints}")


def _loggers(folder: Path | None, uri: str | None) -> list[RunLogger]:
    """Return the requested loggers. Under torchrun, only the first process logs."""
    if started_by_torchrun() and os.environ["RANK"] != "0":
        return []
    loggers: list[RunLogger] = [TensorBoard(folder)] if folder is not None else []
    return loggers + ([MLflow(uri)] if uri is not None else [])
