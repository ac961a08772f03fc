"""The command `counterpoise data`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from ..data.locations import VARIABLE, data_folder
from ..workflows import fetch_data, list_data, pack_nyuv2, pack_qm9
from .terminal import console, fail, print_line


class DataAction(StrEnum):
    list = "list"
    fetch = "fetch"
    pack = "pack"


def data(
    action: Annotated[
        DataAction, typer.Argument(help="list all data sets, fetch the named ones, or pack nyuv2 or qm9.")
    ] = DataAction.list,
    names: Annotated[list[str] | None, typer.Argument(help="Data sets to fetch or pack.", show_default=False)] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", "--data", help=f"Data folder; default: ${VARIABLE}.", show_default=False)
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="nyuv2: nyu_depth_v2_labeled.mat, or a folder of .npy files. qm9: the folder of qm9pack's csv files; "
            "default: that of the installed package.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="The packed file; default: in the data folder.", show_default=False)
    ] = None,
) -> None:
    """List the data sets, and how to get the missing ones. The synthetic studies need none."""
    if action is DataAction.fetch:
        for path in fetch_data(names or [], folder):
            print_line(f"written: {path}")
    elif action is DataAction.pack:
        _pack(names or [], source, to, folder)
    else:
        _print_data(folder)


def _pack(names: list[str], source: Path | None, to: Path | None, folder: Path | None) -> None:
    if names == ["nyuv2"]:
        path, images = pack_nyuv2(source, to, folder=folder)
        content = f"{images} images"
    elif names == ["qm9"]:
        path, report = pack_qm9(source, to, folder=folder)
        content = f"{report.molecules} molecules"
    else:
        found = " ".join(names) or "no data set"
        fail(f"expected: counterpoise data pack nyuv2 --from …, or counterpoise data pack qm9, found {found}")
    print_line(f"{content} packed into {path} ({path.stat().st_size / 2**20:.0f} MB)")


def _print_data(folder: Path | None) -> None:
    place = data_folder(folder) or f"not set (use --data or the environment variable {VARIABLE})"
    print_line(f"data folder: {place}")
    table = Table(Column("data", no_wrap=True), "description", "present")
    statuses = list_data(folder)
    for status in statuses:
        table.add_row(status.source.name, status.source.description, "yes" if status.present else "no")
    console.print(table)
    for status in statuses:  # below the table, which would cut or fold the addresses
        if not status.present:
            console.print(
                f"{status.source.name}: {status.source.instructions}", soft_wrap=True, highlight=False, markup=False
            )
