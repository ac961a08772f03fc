"""The application: all commands, and how it starts."""

import io
import sys
import warnings

import typer

from ..engine import CorruptWarning
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
    help="Balance the losses of multi-task models, and reproduce the paper.",
)
for command in (methods, studies, reproduce, show, atlas, report, pack, data):
    app.command()(command)


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
