"""The application: all commands, and how it starts."""

import io
import sys
import warnings
from typing import Annotated

import typer

import counterpoise as cp

from ..engine import CorruptWarning
from .compare import compare
from .data import data
from .listing import methods, studies
from .pack import pack
from .page import atlas, report
from .reproduce import reproduce
from .show import show
from .terminal import ErrorReportingGroup, print_line

app = typer.Typer(
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
for command in (methods, studies, reproduce, compare, show, atlas, report, pack, data):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"counterpoise {cp.__version__}")
        raise typer.Exit


@app.callback()
def _common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Balance the losses of multi-task models, and reproduce the paper."""


def main() -> None:
    """Run the command line with warnings as single lines."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print "?" on terminals that cannot encode "×"
    warnings.simplefilter("always", CorruptWarning)
    warnings.showwarning = lambda message, *_: print_line(str(message), ("warning:", "yellow"), stderr=True)
    app()


if __name__ == "__main__":
    main()
