"""Write the HTML page, and the PDF, of any run folders and recorded results."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..garbage import paused_garbage_collection
from ._checks import make_writable

if TYPE_CHECKING:  # pandas takes long to import
    from ..report import CollectedRuns


@dataclass(frozen=True)
class Page:
    """The written files, the page first, and the collected runs with the folders that could not be used."""

    files: list[Path]
    collected: CollectedRuns
    pdf: Path | None = None


def check_page_packages(*, pdf: bool = False) -> None:
    """Check that the packages that write the page, and the PDF if it is wanted, are installed.

    Raises:
        UsageError: If one is missing.
    """
    for name in ("jinja2", "plotly"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"the page needs {name}: pip install 'counterpoise[lab]'")
    for name in ("reportlab", "pypdf") if pdf else ():
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"the PDF needs {name}: pip install 'counterpoise[pdf]'")


def write_html_report(runs: Sequence[Path], out: Path, *, pdf: bool = False) -> Page:
    """Write one HTML page that opens from disk, and the files that it links to.

    Args:
        runs: Folders of runs, or of recorded results. The page lists those that are missing, partial or unknown.
        out: Folder of the page.
        pdf: Whether to write the report as a document, too (report.pdf). Default: ``False``.

    Raises:
        UsageError: If a package is missing, no folder can be used, or `out` is not writable.
    """
    check_page_packages(pdf=pdf)
    from ..report import build_page, collect_runs

    with paused_garbage_collection():
        collected = collect_runs(runs)
        if not collected.runs and not collected.recorded:
            raise UsageError("; ".join(f"{problem.path}: {problem.reason}" for problem in collected.problems[:5]))
        make_writable(out)
        page = build_page(collected, out, with_pdf=pdf)
    if not pdf:
        return Page(page.files, collected)
    from ..report.pdf import write_pdf

    document = write_pdf(page, collected, out)
    return Page([*page.files, document], collected, document)
