"""The application: its commands, and how it starts."""

import io
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer

import counterpoise as cp

from ..errors import CorruptWarning
from .terminal import ErrorReportingGroup, print_line

COMMANDS = {
    "methods": "methods",
    "studies": "studies",
    "reproduce": "reproduce",
    "compare": "compare",
    "show": "show",
    "atlas": "page",
    "report": "page",
    "pack": "pack",
    "data": "data",
}
"""Command → module of this folder that defines it."""


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the application with the given commands. Only their modules are imported."""
    app = typer.Typer(cls=ErrorReportingGroup, no_args_is_help=True, pretty_exceptions_show_locals=False)
    app.callback()(_common_options)
    for name in names:
        app.command()(getattr(import_module(f".{COMMANDS[name]}", __package__), name))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"counterpoise {cp.__version__}")
        raise typer.Exit


def _common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Balance the losses of multi-task models, and reproduce the paper."""


def run(arguments: Sequence[str]) -> None:
    """Run the command line with warnings as single lines."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print "?" on terminals that cannot encode "×"
    warnings.simplefilter("always", CorruptWarning)
    warnings.showwarning = lambda message, *_: print_line(str(message), ("warning:", "yellow"), stderr=True)
    make_app(arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS)(arguments)
