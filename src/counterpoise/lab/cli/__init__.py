"""The command line: thin commands over functions that Python can call."""

from .app import main

__all__ = ["main"]
