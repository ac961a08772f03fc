"""Results → tables, figures, the claims ledger. Reads from disk and knows no trainer."""

from .book import Book
from .made import provenance, workshop

__all__ = ["Book", "provenance", "workshop"]
