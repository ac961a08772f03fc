"""The command `counterpoise pack`, which writes finished runs into one archive."""

from pathlib import Path
from typing import Annotated

import typer

from ..engine.archive import SUFFIX
from ..engine.archive import pack as pack_runs
from ..errors import UsageError
from .options import parse_path
from .terminal import print_line


def pack(
    runs: Annotated[
        Path, typer.Argument(help="Folder of runs, for example runs/nyuv2.", parser=parse_path, metavar="RUNS")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help=f"Path of the archive, which ends in {SUFFIX}.", parser=parse_path, metavar="PATH"
        ),
    ],
) -> None:
    """Write the finished runs of a folder into one compressed file, which `report` and `show` read like the folder."""
    if not out.name.endswith(SUFFIX):
        raise UsageError(f"expected an archive that ends in {SUFFIX}, got {out}")
    try:
        count = pack_runs(runs, out)
    except ValueError as error:
        raise UsageError(str(error)) from error
    print_line(f"written: {out} ({count} runs, {out.stat().st_size / 2**20:.2f} MB)")
