"""Results → tables, figures, the claims ledger. Reads from disk and knows no trainer."""

from .book import Book

__all__ = ["Book"]
