"""The command line: thin commands over the functions of `counterpoise.lab.workflows`."""

from .entry_point import main

__all__ = ["main"]
