"""The functions behind the command line: list, reproduce and show studies, compare methods, write pages, fetch data."""

from .compare import Comparison, compare
from .data import DataStatus, fetch_data, list_data, pack_nyuv2, pack_qm9
from .listing import RunStatus, StudyStatus, list_runs, list_studies
from .page import Page, write_html_report
from .reproduce import Reproduction, reproduce
from .show import StudyReport, load_report, load_saturation

__all__ = [
    "Comparison",
    "DataStatus",
    "Page",
    "Reproduction",
    "RunStatus",
    "StudyReport",
    "StudyStatus",
    "compare",
    "fetch_data",
    "list_data",
    "list_runs",
    "list_studies",
    "load_report",
    "load_saturation",
    "pack_nyuv2",
    "pack_qm9",
    "reproduce",
    "write_html_report",
]
