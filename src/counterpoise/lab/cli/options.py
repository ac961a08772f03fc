"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from ..data.locations import VARIABLE


def parse_path(text: str | Path) -> Path:
    """Return a path. `Path("")` would be the current folder, which is rarely meant."""
    if not str(text):
        raise typer.BadParameter("the path is empty; for the current folder, write .")
    return Path(text)


Out = Annotated[Path, typer.Option(help="Folder of runs and reports.", parser=parse_path, metavar="PATH")]
Seeds = Annotated[
    str | None,
    typer.Option(help='"42-51", "42,43,44" or "paper"; default: the paper\'s and ten more.', show_default=False),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Number of epochs; default: the study's.", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:0.")]
Quick = Annotated[bool, typer.Option("--quick", help="Use the quick form of the study, if it has one.")]
Methods = Annotated[list[str] | None, typer.Option("--method", help="Only these methods.", show_default=False)]
Conditions = Annotated[list[str] | None, typer.Option("--condition", help="Only these columns.", show_default=False)]
DataChoice = Annotated[
    str | None,
    typer.Option(
        "--data",
        help=f'Data folder, default ${VARIABLE}; or "scenes": synthetic rooms instead of NYUv2.',
        show_default=False,
    ),
]
