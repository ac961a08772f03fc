"""Reports on finished runs: tables, figures, the claims ledger and one HTML page."""

from .html import write_page
from .provenance import machine_table, provenance
from .report import Report
from .run_collection import CollectedRuns, collect_runs

__all__ = ["CollectedRuns", "Report", "collect_runs", "machine_table", "provenance", "write_page"]
