"""Any set of run folders and recorded results as one page that opens from disk, and files."""

from .gather import Gathered, gather
from .page import write

__all__ = ["Gathered", "gather", "write"]
