"""The command `counterpoise show`."""

from pathlib import Path
from typing import Annotated

import typer

from ..studies import SATURATION
from ..workflows import load_report, load_saturation
from .options import DataChoice, Epochs, Out, Quick, Seeds
from .terminal import console, fail, print_line, print_other_devices


def show(
    study: Annotated[str, typer.Argument(help="Name of a study.")],
    out: Out = Path("runs"),
    seeds: Seeds = None,
    epochs: Epochs = None,
    device: Annotated[
        str | None, typer.Option(help="Device of the runs; default: any that has some.", show_default=False)
    ] = None,
    data: DataChoice = None,
    quick: Quick = False,
) -> None:
    """Show the tables of a study next to the paper's, and its claims.

    "saturation" shows how close BPGS gets to the edge of its chart, in all studies with finished runs.
    """
    if study == SATURATION:
        if quick or not (seeds is None and epochs is None and data is None):
            fail("saturation is one table of all full runs: it takes only --out and --device")
        _show_saturation(out, device)
        return
    loaded = load_report(study, out, seeds=seeds, epochs=epochs, device=device, data=data, quick=quick)
    loaded.report.show(console)
    if device is None:
        print_other_devices(loaded.device, loaded.devices)


def _show_saturation(out: Path, device: str | None) -> None:
    from ..report import saturation

    rows = load_saturation(out, device=device)
    if len(rows):
        console.print(saturation.terminal(rows))
    else:
        print_line(f"no finished run of BPGS in {out} for this table")
