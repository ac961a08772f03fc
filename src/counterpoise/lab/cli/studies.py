"""The command `counterpoise studies`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from ..engine.archive import ArchivedStore
from ..studies import STUDIES, find_study
from ..workflows import list_runs, list_studies
from .options import Conditions, DataChoice, Device, Epochs, Methods, Out, Quick, Seeds
from .terminal import console, fail, print_other_devices


def studies(
    study: Annotated[str | None, typer.Argument(help="List the runs of this study.", show_default=False)] = None,
    out: Out = Path("runs"),
    seeds: Seeds = None,
    epochs: Epochs = None,
    device: Device = "cpu",
    method: Methods = None,
    condition: Conditions = None,
    data: DataChoice = None,
    quick: Quick = False,
) -> None:
    """List all studies, or the runs of one study with their scores."""
    if study is None:
        if quick or any(given is not None for given in (seeds, epochs, method, condition, data)):
            fail("name a study: the list of all studies takes only --out and --device")
        _print_studies(out, device)
        return
    runs = list_runs(
        study,
        out,
        seeds=seeds,
        epochs=epochs,
        device=device,
        methods=method,
        conditions=condition,
        data=data,
        quick=quick,
    )
    chosen = find_study(study)
    table = Table("method", "condition", "seed", "lr", "folder", "score", title=chosen.title)
    for status in runs:
        run, score = status.cell.run, "–" if status.score is None else f"{status.score:.3f}"
        row = (status.cell.method, status.cell.condition.key, str(run.seed), f"{run.network_lr:g}", run.key, score)
        table.add_row(*row)
    console.print(table)
    print_other_devices(device, ArchivedStore(out).devices(chosen.name))


def _print_studies(out: Path, device: str) -> None:
    table = Table(Column("study", no_wrap=True), "question", "runs", "finished")
    for status in list_studies(out, device=device):
        table.add_row(status.study.name, status.study.question, str(status.runs), str(status.finished))
    console.print(table)
    store = ArchivedStore(out)
    print_other_devices(device, {name for study in STUDIES for name in store.devices(study)})
