"""Load the report of a study's finished runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.archive import ArchivedStore
from ..errors import UsageError
from ..studies import saturation_studies
from ..studies.select import report_seeds, resolve_study, select_runs
from ._checks import check_device

if TYPE_CHECKING:  # pandas takes long to import
    import pandas as pd

    from ..report import Report


@dataclass(frozen=True)
class StudyReport:
    """The report of a study on one device, and all devices on which it has finished runs."""

    report: Report
    device: str
    devices: list[str]


def load_report(
    study: str,
    out: Path | str = "runs",
    *,
    seeds: str | Iterable[int] | None = None,
    epochs: int | None = None,
    device: str | None = None,
    data: str | None = None,
    quick: bool = False,
) -> StudyReport:
    """Return the tables and claims of a study, computed from its finished runs.

    Args:
        study: Name of the study.
        out: Folder of runs.
        seeds: Seeds as a list, or as text such as "42-51" or "paper". Default: all seeds of the study.
        epochs: Number of epochs. Default: the study's.
        device: Device of the runs. Default: the first one with finished runs.
        data: "scenes" for synthetic rooms instead of NYUv2.
        quick: Whether to report the quick form of the study.

    Raises:
        UsageError: If an argument is unknown, or if there is no finished run.
    """
    from ..report import Report

    store, chosen = ArchivedStore(out), resolve_study(study, data=data, quick=quick)
    devices = []
    for name in store.devices(study) or ["cpu"]:
        cells = select_runs(chosen, seeds=seeds, epochs=epochs, device=name)
        if any(store.result(cell.run) for cell in cells):
            devices.append(name)
    shown = check_device(device) if device else next(iter(devices), "any device")
    if shown not in devices:
        others = f"; there are runs on {' and '.join(devices)}" if devices else ""
        raise UsageError(f"no finished run of {study} in {out} on {shown} at these seeds and epochs{others}")
    report = Report([chosen], store, seeds=report_seeds(seeds, chosen), epochs=epochs, device=shown)
    return StudyReport(report, shown, devices)


def load_saturation(out: Path | str = "runs", *, device: str | None = None) -> pd.DataFrame:
    """Return the table of how close BPGS gets to the edge of its chart, from all studies of the paper's table.

    Args:
        out: Folder of runs.
        device: Device of the runs. Default: every device.

    Returns:
        One row per study and device, empty if there is no finished run.
    """
    from ..report.saturation import saturation_on_devices

    return saturation_on_devices(saturation_studies(), ArchivedStore(out), device and check_device(device))
