"""The commands `counterpoise report` and `counterpoise atlas`, which write HTML pages."""

from pathlib import Path
from typing import Annotated

import typer

from ..atlas import render_atlas
from ..errors import UsageError
from ..files import write_atomic
from ..workflows import write_html_report
from .options import parse_path
from .terminal import print_line


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, or of recorded results.", parser=parse_path, metavar="RUNS..."),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder of the page and its files.", parser=parse_path, metavar="PATH"),
    ],
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write report.pdf, typeset like a paper.")] = False,
) -> None:
    """Write one HTML page, which opens from disk, for any set of run folders and recorded results.

    The page lists folders that are missing, partial or unknown.
    """
    page = write_html_report(runs, out, pdf=pdf)
    for problem in page.collected.problems[:20]:
        print_line(f"{problem.path} ({problem.kind}: {problem.reason})", ("not used:", "yellow"))
    index = page.files[0]
    print_line(f"{index} ({index.stat().st_size / 2**20:.1f} MB) and {len(page.files) - 1} files beside it")
    if page.pdf is not None:
        print_line(f"{page.pdf} ({page.pdf.stat().st_size / 2**20:.1f} MB)")


def atlas(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Path of the page.", parser=parse_path, metavar="PATH")
    ] = Path("atlas.html"),
) -> None:
    """Write the method atlas: a page with sliders that shows how each method treats losses and gradients."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder, expected the path of a page, for example {out / 'atlas.html'}")
    write_atomic(out, render_atlas().encode())
    print_line(f"written: {out} (open it in a browser)")
