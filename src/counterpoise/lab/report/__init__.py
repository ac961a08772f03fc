"""Results → tables, figures, the claims ledger, one page. Reads from disk and knows no trainer."""

from .html import write
from .provenance import provenance, workshop
from .report import Book
from .run_collection import Gathered, gather

__all__ = ["Book", "Gathered", "gather", "provenance", "workshop", "write"]
