"""The command `counterpoise data`: which data sets are here, and how the others get here."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from ..data.arff import DataError
from ..data.fetch import FETCHED, fetch
from ..data.locations import SOURCES, VARIABLE, data_folder, present
from ..data.nyuv2 import FILE
from ..data.nyuv2_sources import read_source, write_zip
from .terminal import console, fail, say


class DataAction(StrEnum):
    list = "list"
    fetch = "fetch"
    pack = "pack"


def data(
    action: Annotated[
        DataAction, typer.Argument(help="list, fetch those that are named, or pack nyuv2.")
    ] = DataAction.list,
    names: Annotated[list[str] | None, typer.Argument(help="Data sets to fetch or pack.", show_default=False)] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", "--data", help=f"Data folder; default: ${VARIABLE}.", show_default=False)
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option("--from", help="nyu_depth_v2_labeled.mat, or a folder of .npy files.", show_default=False),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="The zip; default: in the data folder.", show_default=False)] = None,
) -> None:
    """Which data sets lie where, which are missing, and how to get them. The synthetic studies need none."""
    where = data_folder(folder)
    if action is DataAction.fetch:
        _fetch(names or [], where)
        return
    if action is DataAction.pack:
        _pack(names or [], given, to or (where and where / "nyuv2" / FILE))
        return
    say(f"data folder: {where or f'not set (--data, or the environment variable {VARIABLE})'}")
    table = Table(Column("data", no_wrap=True), "what", "here")
    missing = [source for source in SOURCES if not present(source, where)]
    for source in SOURCES:
        table.add_row(source.name, source.what, "no" if source in missing else "yes")
    console.print(table)
    for source in missing:  # not in the table: an address is of no use when it is cut or folded
        console.print(f"{source.name}: {source.get}", soft_wrap=True, highlight=False)


def _fetch(names: list[str], where: Path | None) -> None:
    if not names:
        fail(f"name what to fetch: {', '.join(FETCHED)}")
    if where is None:
        fail(f"no data folder: name one with --data, or with the environment variable {VARIABLE}")
    for name in names:
        try:
            for path in fetch(name, where):
                say(f"written: {path}")
        except DataError as error:
            fail(str(error))


def _pack(names: list[str], source: Path | None, to: Path | None) -> None:
    """Turns either form of NYUv2 into the compact zip."""
    if names != ["nyuv2"]:
        fail(
            f"pack turns NYUv2 into one zip: counterpoise data pack nyuv2 --from …, not {' '.join(names) or 'nothing'}"
        )
    if source is None or to is None:
        fail(f"say where NYUv2 is (--from) and where the zip goes (--to, or {VARIABLE})")
    try:
        images = read_source(source)
        write_zip(images, to)
    except DataError as error:
        fail(str(error))
    say(f"{len(images)} images packed into {to} ({to.stat().st_size / 2**20:.0f} MB)")
