"""Reports on finished runs: tables, figures, the claims ledger and one HTML page."""

from .html import build_page, write_page
from .provenance import machine_table, provenance
from .report import Report
from .run_collection import CollectedRuns, collect_runs

__all__ = ["CollectedRuns", "Report", "build_page", "collect_runs", "machine_table", "provenance", "write_page"]
