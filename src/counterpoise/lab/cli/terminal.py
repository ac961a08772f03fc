"""Output of the command line. Text of the user is never parsed as markup, and errors are printed as one line."""

import errno
from collections.abc import Iterable
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ..data.arff import DataError
from ..engine import RunError
from ..errors import ReportError, UsageError, describe_os_error
from ..loggers import LoggerError

console = Console()


def print_line(message: str, title: tuple[str, str] | None = None, *, stderr: bool = False) -> None:
    """Print a line without markup.

    Args:
        message: The text.
        title: A word before the text, and its colour.
        stderr: Whether to print to standard error.
    """
    line = Text.assemble(title, " ", message) if title else Text(message)
    (Console(stderr=True) if stderr else console).print(line, soft_wrap=True)


def print_other_devices(shown: str, devices: Iterable[str]) -> None:
    """Print a hint if there are runs on other devices than the one that is shown."""
    others = sorted(set(devices) - {shown})
    if others:
        print_line(
            f"These are runs of {shown}. There are others, of {' and '.join(others)}: --device {others[0]} shows them."
        )


def fail(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    print_line(message, ("error:", "red"), stderr=True)
    raise typer.Exit(2)


class ErrorReportingGroup(TyperGroup):
    """A group of commands that prints expected errors as one line instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (UsageError, ReportError, DataError, LoggerError, RunError) as error:
            fail(str(error))
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has closed it
                raise
            fail(describe_os_error(error))
