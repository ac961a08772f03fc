"""The command `counterpoise reproduce`."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..workflows import reproduce as reproduce_studies
from .options import Conditions, DataChoice, Device, Epochs, Methods, Out, Quick, Seeds
from .progress import ProgressDisplay
from .terminal import console, print_line


class ExecutorChoice(StrEnum):
    inline = "inline"
    processes = "processes"
    ray = "ray"


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of studies; default: the paper's four synthetic studies.", show_default=False),
    ] = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    device: Device = "cpu",
    executor: Annotated[ExecutorChoice, typer.Option(help="Where to train.")] = ExecutorChoice.processes,
    jobs: Annotated[int | None, typer.Option(min=1, help="Local processes; default: one per CPU.")] = None,
    address: Annotated[str | None, typer.Option(help='Ray cluster: "auto" or its address.')] = None,
    out: Out = Path("runs"),
    method: Methods = None,
    condition: Conditions = None,
    data: DataChoice = None,
    quick: Quick = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Log losses, weights and charts to this folder.", show_default=False)
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(help="Log the same to MLflow at this tracking URI.", show_default=False)
    ] = None,
) -> None:
    """Train the unfinished runs of studies; show and write tables, claims and figures."""
    try:
        done = reproduce_studies(
            names,
            seeds=seeds,
            epochs=epochs,
            device=device,
            executor=executor.value,
            jobs=jobs,
            address=address,
            out=out,
            methods=method,
            conditions=condition,
            data=data,
            quick=quick,
            tensorboard=tensorboard,
            mlflow=mlflow,
            progress=partial(ProgressDisplay, console),
            on_report=lambda report: report.show(console),
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if done.files:
        print_line(f"{len(done.files)} files in {out / 'report'}: tables, ledger and figures")
