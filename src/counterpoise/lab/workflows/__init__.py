"""The functions behind the command line: list, reproduce and show studies, write the page, manage data."""

from .data import DataStatus, fetch_data, list_data, pack_nyuv2
from .listing import RunStatus, StudyStatus, list_runs, list_studies
from .page import Page, write_html_report
from .reproduce import Reproduction, reproduce
from .show import StudyReport, load_report, load_saturation

__all__ = [
    "DataStatus",
    "Page",
    "Reproduction",
    "RunStatus",
    "StudyReport",
    "StudyStatus",
    "fetch_data",
    "list_data",
    "list_runs",
    "list_studies",
    "load_report",
    "load_saturation",
    "pack_nyuv2",
    "reproduce",
    "write_html_report",
]
